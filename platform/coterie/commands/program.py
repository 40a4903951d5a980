"""Run a command: help, error messages, exit codes."""

import atexit
import errno
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NoReturn

from rich.logging import RichHandler

from coterie.config.launcher import launcher_hidden
from coterie.errors import (
    CoterieError,
    InterruptedRunError,
    RunError,
    described,
    listed,
    on_one_line,
    out_of_memory,
    printable,
    reason,
)
from coterie.tracking.streams import Outlasting, open_missing
from coterie.tracking.terminal import Terminal

_HELP = {"-h", "--help"}
_ROOM = 60
"""Columns from which a warning has room for its time."""
_PATIENCE_S = 5.0
"""Seconds for which threads may outlast a command before they are told."""
_LONGEST = 10_000
"""Characters of an error that are shown."""

_logger = logging.getLogger(__name__)


def run_command(
    command: Callable[[Sequence[str]], int],
    arguments: Sequence[str],
    help_text: Callable[..., str],
) -> int:
    """Run a command and print its errors as one sentence on stderr.

    Args:
        command: Takes the arguments and returns the exit code. It should import PyTorch only after
            it has read the arguments, so that a mistyped key is refused at once.
        arguments: The command line after the module's name.
        help_text: Takes the arguments besides `--help` and returns the help.

    Returns:
        The exit code of the command, or of the error that ended it.
    """
    open_missing()
    os.environ["MPLBACKEND"] = "agg"  # figures are files; a name that matplotlib lacks would end it
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # also of weights from files
    errors = Terminal(stderr=True, soft_wrap=True)
    handler = RichHandler(console=errors, show_path=False, show_time=errors.width >= _ROOM)
    handler.setFormatter(_OneLine("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # its warnings on fonts and caches
    for name in ("huggingface_hub", "transformers"):  # they print their messages themselves too
        logging.getLogger(name).propagate = False
    show = partial(errors.print, style="red", highlight=False)

    try:
        if _HELP & set(arguments):
            rest = [argument for argument in arguments if argument not in _HELP]
            Terminal().out(help_text(*rest), highlight=False)
            return 0
        with launcher_hidden(), _warnings_told():
            return command(arguments)
    except CoterieError as error:
        if not error.reported:
            show(on_one_line(str(error)[:_LONGEST]))
        return error.exit_code
    except (OSError, MemoryError, RuntimeError) as error:  # before or after the run itself
        show(_refusal(error))
        return RunError.exit_code
    except SystemExit as error:  # of code that the run loads: nothing of it has completed
        show(f"Code that was loaded called sys.exit ({described(error) or 'no code'}); correct it.")
        return RunError.exit_code
    except KeyboardInterrupt:  # before or after `Interrupts`
        show("Interrupted.")
        return InterruptedRunError.exit_code


class _OneLine(logging.Formatter):
    """Log formatter that keeps each message on one line, even if a name in it has line breaks."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - of logging
        """Return the message without line breaks."""
        return on_one_line(super().formatMessage(record))


@contextmanager
def _warnings_told() -> Iterator[None]:
    """Show warnings of libraries as sentences of the command.

    Python would print them as they are, with control characters of a file's content.
    """
    before = warnings.showwarning
    warnings.showwarning = _tell
    try:
        yield
    finally:
        warnings.showwarning = before


def _tell(message: Warning | str, *_: object, **__: object) -> None:
    why = described(message) if isinstance(message, Warning) else printable(message)
    _logger.warning("%s", why)


def _refusal(error: OSError | MemoryError | RuntimeError) -> str:
    """Return a sentence for an error of the operating system; raise other errors again."""
    if out_of_memory(error):
        return f"There is too little memory ({reason(error)}); make data or encoder smaller."
    if not isinstance(error, OSError):
        raise error
    why = error.strerror or " ".join(str(error).split()) or type(error).__name__
    if error.errno is None:  # a library's own, such as of a hub that it cannot reach
        return f"{type(error).__name__}: {why.rstrip('.')}."
    where = f"{error.filename}: " if error.filename else ""
    denied = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
    remedy = "change its permissions, or work on a copy" if denied else "make room"
    return f"{where}the system refused it ({why}); {remedy}, and start again."


def run_program(main: Callable[[Sequence[str]], int]) -> NoReturn:
    """Run a command as the only work of this process, and exit with its exit code.

    Python's shutdown takes all modules apart, which takes about two seconds with PyTorch and
    Lightning. The process therefore ends after the last exit handler; threads are joined and exit
    handlers run as usual. A command that raises ends in Python's usual way.

    Args:
        main: Takes the command line after the module's name and returns the exit code. Exit
            handlers must be registered after this call.
    """
    ending = _Ending()
    atexit.register(ending)  # handlers run last in, first out
    ending.exit_code = main(sys.argv[1:])
    _tell_threads()
    sys.exit(ending.exit_code)


def _tell_threads() -> None:
    """Warn about threads that are still running and that Python waits for before it exits.

    They are those of code that a run loads; all of Coterie's end with the run.
    """
    others = [thread for thread in threading.enumerate() if not thread.daemon]
    others.remove(threading.current_thread())
    until = time.monotonic() + _PATIENCE_S
    for thread in others:
        thread.join(max(0.0, until - time.monotonic()))
    if left := [thread.name for thread in others if thread.is_alive()]:
        _logger.warning(
            "The command is done, but code that it has loaded still runs (thread %s); wait for "
            "it, or press Ctrl-C.",
            listed(left),
        )


class _Ending:
    """The last exit handler, which ends the process once the command has returned."""

    exit_code: int | None = None

    def __call__(self) -> None:
        if self.exit_code is None:
            return
        logging.shutdown()
        Outlasting(sys.stdout).flush()
        Outlasting(sys.stderr).flush()
        os._exit(self.exit_code)
