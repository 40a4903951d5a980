"""What every command shares: help, how refusals are shown, exit codes."""

import logging
import sys
from collections.abc import Callable, Sequence
from functools import partial

from rich.console import Console
from rich.logging import RichHandler

from coterie.errors import CoterieError, RunError

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
