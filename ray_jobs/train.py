"""Train an experiment: `python -m ray_jobs.train experiment=fedmcc_digits [key=value …]`."""

import logging
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.logging import RichHandler

from coterie.errors import CoterieError
from ray_jobs.compose import compose
from ray_jobs.help_text import help_text


def main(arguments: Sequence[str]) -> int:
    """Run the experiment that the arguments ask for.

    Returns:
        The exit code: 0 completed; 1 failed; 2 config or data refused; 3 completed, but clients
        were dropped; 130 interrupted.
    """
    errors = Console(stderr=True, soft_wrap=True)
    logging.basicConfig(
        level=logging.WARNING,
        format="%(message)s",
        handlers=[RichHandler(console=errors, show_path=False)],
    )
    if {"-h", "--help"} & set(arguments):
        rest = [argument for argument in arguments if argument not in {"-h", "--help"}]
        sys.stdout.write(help_text(*rest) + "\n")
        return 0
    try:
        config = compose(*arguments)
        # Imported only now: a mistyped key is answered at once, not after PyTorch has loaded.
        from coterie.engine.federation import Federation

        return Federation(config).run().exit_code
    except CoterieError as error:
        if not error.reported:
            errors.print(str(error), style="red", highlight=False, markup=False)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
