"""Print what to cite: `coterie cite run=DIR` or `coterie cite method=NAME`."""

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field

from coterie.commands.arguments import read_values
from coterie.commands.citations import citations
from coterie.commands.compose import read_choice
from coterie.commands.help_text import command_help
from coterie.commands.program import run_command, run_program
from coterie.config.component import Component
from coterie.config.loading import load_component
from coterie.errors import ConfigError
from coterie.tracking.run_directory import RunDirectory
from coterie.tracking.terminal import Terminal

_Given = Annotated[str, Field(min_length=1)] | None


class CiteConfig(Component):
    """What to cite; exactly one of these."""

    run: _Given = None
    """A run's folder."""
    method: _Given = None
    """A method, such as fedmcc."""


def main(arguments: Sequence[str]) -> int:
    """Print the BibTeX of what the arguments name."""
    return run_command(_cite, arguments, _help)


def _help(*arguments: str) -> str:
    return command_help(
        "Prints the BibTeX of Coterie and of the papers of a run's method.",
        "usage: coterie cite run=DIR\n       coterie cite method=NAME",
        CiteConfig,
    )


def _cite(arguments: Sequence[str]) -> int:
    options = load_component(CiteConfig, read_values(arguments))
    if (options.run is None) == (options.method is None):
        raise ConfigError("run, method: give one of them, as run=DIR or method=fedmcc.")
    if options.run is not None:
        method = RunDirectory.open(options.run, key="run").read_config()["method"]
    else:
        method = read_choice("method", str(options.method))
    used = (method, method.get("strategy"))
    targets = [
        str(part["target"]) for part in used if isinstance(part, Mapping) and "target" in part
    ]
    Terminal(soft_wrap=True).print(citations(*targets), highlight=False)
    return 0


if __name__ == "__main__":
    run_program(main)
