"""Write the tables of docs/results again from its data: `coterie results`."""

from collections.abc import Sequence
from pathlib import Path

from coterie.commands.arguments import read_values
from coterie.commands.help_text import command
from coterie.commands.program import run_program
from coterie.config.component import Component, NotEmpty
from coterie.config.loading import load_component
from coterie.studies.results_pages import written_pages
from coterie.tracking.atomic import write_text_atomically
from coterie.tracking.terminal import Terminal


class ResultsConfig(Component):
    """Where the pages are."""

    docs: NotEmpty = "docs"
    """The folder with results.md and results/."""


@command(
    "Writes the tables of the papers' studies into docs/results/*.md and the claims into "
    "docs/results.md, from the files in docs/results/data and from configs/study. Only what "
    "stands between a study's markers changes.",
    "usage: coterie results [docs=DIR]",
    ResultsConfig,
)
def main(arguments: Sequence[str]) -> int:
    """Write the pages."""
    options = load_component(ResultsConfig, read_values(arguments))
    for path, text in written_pages(Path(options.docs)).items():
        if path.read_text(encoding="utf-8") != text:
            write_text_atomically(path, text)
            Terminal().print(str(path), soft_wrap=True, highlight=False)
    return 0


if __name__ == "__main__":
    run_program(main)
