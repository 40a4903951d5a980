"""Write a run's page again: `coterie report run=DIR`."""

from collections.abc import Sequence

from coterie.commands.arguments import read_values
from coterie.commands.changed_config import load_stored
from coterie.commands.help_text import command
from coterie.commands.program import run_program
from coterie.config.component import Component, NotEmpty
from coterie.config.file_digest import files_untouched
from coterie.config.loading import load_component
from coterie.config.trust import Trust
from coterie.tracking.formatting import display_path
from coterie.tracking.paths import check_ours
from coterie.tracking.run_directory import RunDirectory
from coterie.tracking.run_report import write_run_report
from coterie.tracking.terminal import Terminal


class ReportConfig(Component):
    """Which run to report."""

    run: NotEmpty
    """The run's folder."""
    trust: Trust = ()
    """Packages that the run's config may import, in addition to Coterie's own."""


@command(
    "Writes report.html into a run's folder, from the other files there. A run does so when it "
    "ends; the command does it for a run that was killed, or is under way.",
    "usage: coterie report run=DIR",
    ReportConfig,
)
def main(arguments: Sequence[str]) -> int:
    """Write the page of the run that the arguments name."""
    options = load_component(ReportConfig, read_values(arguments))
    directory = RunDirectory.open(options.run, key="run")
    with files_untouched():
        config = load_stored(directory, options.trust)
    check_ours("run", directory.path)
    page = write_run_report(directory, config)
    Terminal().print(display_path(page), soft_wrap=True, highlight=False)
    return 0


if __name__ == "__main__":
    run_program(main)
