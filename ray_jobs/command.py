"""What every command shares: help, how refusals are shown, exit codes."""

import logging
import sys
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.logging import RichHandler

from coterie.errors import CoterieError

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
    try:
        if _HELP & set(arguments):
            rest = [argument for argument in arguments if argument not in _HELP]
            sys.stdout.write(help_text(*rest) + "\n")
            return 0
        return command(arguments)
    except CoterieError as error:
        if not error.reported:
            errors.print(str(error), style="red", highlight=False, markup=False)
        return error.exit_code
