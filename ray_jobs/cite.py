"""Print what to cite: `coterie cite run=DIR` or `coterie cite method=NAME`."""

from collections.abc import Mapping, Sequence

from coterie.commands.arguments import read_values
from coterie.commands.citations import citations
from coterie.commands.compose import read_choice
from coterie.commands.help_text import command
from coterie.commands.program import run_program
from coterie.config.component import Component, NotEmpty
from coterie.config.loading import load_component
from coterie.errors import ConfigError
from coterie.tracking.run_directory import RunDirectory
from coterie.tracking.terminal import Terminal


class CiteConfig(Component):
    """What to cite; exactly one of these."""

    run: NotEmpty | None = None
    """A run's folder."""
    method: NotEmpty | None = None
    """A method, such as fedmcc."""


@command(
    "Prints the BibTeX of Coterie and of the papers of a run's method.",
    "usage: coterie cite run=DIR\n       coterie cite method=NAME",
    CiteConfig,
)
def main(arguments: Sequence[str]) -> int:
    """Print the BibTeX of what the arguments name."""
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
