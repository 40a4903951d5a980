"""The command `coterie`: `coterie train …` runs `coterie.jobs.train`, and so on."""

import ast
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from coterie.commands.program import run_command, run_program
from coterie.config.explain import not_among
from coterie.errors import ConfigError
from coterie.tracking.terminal import Terminal
from coterie.version import __version__

_FOLDER = Path(__file__).parent


def main() -> NoReturn:
    """Run the command that the first argument names, with the other arguments."""
    run_program(_main)


def _main(arguments: Sequence[str]) -> int:
    name, *rest = arguments or ["--help"]
    known = dict(_commands())
    job = name.replace("-", "_")
    if job not in known:
        return run_command(_other, arguments or ["--help"], _help)
    command: Callable[[Sequence[str]], int] = import_module(f"coterie.jobs.{job}").main
    return command(rest)


def _other(arguments: Sequence[str]) -> int:
    """Print the version, or refuse a command that does not exist."""
    if arguments[0] == "--version":
        Terminal().print(f"coterie {__version__}", highlight=False)
        return 0
    why = not_among("command", arguments[0], dict(_commands()), "coterie --help")
    raise ConfigError(f"coterie {arguments[0]}: {why}")


def _help(*_: str) -> str:
    lines = [f"  {name:<12}{summary}" for name, summary in _commands()]
    return "\n".join(
        [
            "usage: coterie COMMAND [KEY=VALUE ...]",
            "       coterie COMMAND --help",
            "",
            "commands:",
            *lines,
        ]
    )


def _commands() -> Iterator[tuple[str, str]]:
    """Return each command and its file's first line, without importing it."""
    for path in sorted(_FOLDER.glob("*.py")):
        if not path.stem.startswith("_"):
            doc = ast.get_docstring(ast.parse(path.read_bytes())) or ""
            yield path.stem, doc.partition("\n")[0].partition(": `")[0].rstrip(".") + "."


if __name__ == "__main__":
    main()
