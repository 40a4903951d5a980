"""What every command shares: help, how refusals are shown, exit codes."""

import atexit
import logging
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn

from rich.console import Console
from rich.logging import RichHandler

from coterie.errors import CoterieError, InterruptedRunError, RunError

_HELP = {"-h", "--help"}


def run_command(
    command: Callable[[Sequence[str]], int],
    arguments: Sequence[str],
    help_text: Callable[..., str],
) -> int:
    """Run a command, with its errors as one sentence on stderr.

    Args:
        command: Takes the arguments and gives the exit code. It should import PyTorch only once the
            arguments have been read: a mistyped key is then answered at once.
        arguments: The command line behind the module's name.
        help_text: Takes the other arguments and gives what `--help` writes.

    Returns:
        The command's exit code, or that of the error which ended it.
    """
    errors = Console(stderr=True, soft_wrap=True)
    logging.basicConfig(
        level=logging.WARNING,
        format="%(message)s",
        handlers=[RichHandler(console=errors, show_path=False)],
    )
    show = partial(errors.print, style="red", highlight=False, markup=False, emoji=False)
    try:
        if _HELP & set(arguments):
            rest = [argument for argument in arguments if argument not in _HELP]
            sys.stdout.write(help_text(*rest) + "\n")
            return 0
        return command(arguments)
    except CoterieError as error:
        if not error.reported:
            show(str(error))
        return error.exit_code
    except OSError as error:  # what the system refuses before or after the run itself
        reason = error.strerror or " ".join(str(error).split()) or type(error).__name__
        where = f"{error.filename}: " if error.filename else ""
        show(f"{where}the system refused it ({reason}); make room or mend access, and start again.")
        return RunError.exit_code
    except KeyboardInterrupt:  # rounds and evaluations catch the signal themselves
        show("Interrupted.")
        return InterruptedRunError.exit_code


def run_program(main: Callable[[Sequence[str]], int]) -> NoReturn:
    """Run a command as all that this process does, and end the process with its exit code.

    Python ends by taking every module apart. With PyTorch and Lightning that takes some two
    seconds, in which the user waits for nothing. Threads are waited for and exit handlers run as
    ever; the process ends after the last of them. A command that raises ends in Python's own way.

    Args:
        main: Takes the command line behind the module's name and gives the exit code. What it needs
            at the end of the process must register its exit handler later than this call.
    """
    ending = _Ending()
    atexit.register(ending)  # handlers run last in, first out
    ending.exit_code = main(sys.argv[1:])
    sys.exit(ending.exit_code)


class _Ending:
    """The last exit handler."""

    exit_code: int | None = None

    def __call__(self) -> None:
        if self.exit_code is None:
            return
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(self.exit_code)
