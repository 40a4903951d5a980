"""Look at a run's clusters, and merge, split and name them: `coterie show run=DIR`."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic import PositiveInt
from rich.progress import track

from coterie.commands.changed_config import changed_config, read_changes
from coterie.commands.help_text import command
from coterie.commands.program import run_program
from coterie.config.component import Component, NotEmpty
from coterie.config.trust import Trust
from coterie.tracking.formatting import display_path
from coterie.tracking.paths import check_replaceable, local_path, make_writable
from coterie.tracking.run_directory import RunDirectory
from coterie.tracking.terminal import Terminal


class ShowConfig(Component):
    """Which run to show."""

    run: NotEmpty
    """The folder of a finished run."""
    out: NotEmpty | None = None
    """The page; by default clusters.html in the run's folder."""
    pictures: PositiveInt = 24
    """Number of most certain pictures of each cluster, and of the least certain."""
    samples: PositiveInt = 2000
    """Samples that the model looks at again, to find pairs of clusters that touch, and halves of
    clusters."""
    trust: Trust = ()
    """Packages that the run's config may import, in addition to Coterie's own."""


@command(
    "Writes a page with each cluster's most and least certain pictures and the pairs of "
    "clusters that touch, on which the data's owner merges, splits and names clusters; "
    "`predict clusters=FILE` assigns by the file that it saves. Of node-local data it shows "
    "prototypes. Keys of data can be changed, such as data.path.",
    "usage: coterie show run=DIR [data.KEY=VALUE ...]",
    ShowConfig,
)
def main(arguments: Sequence[str]) -> int:
    """Write the page of the run that the arguments name."""
    options, changes = read_changes(ShowConfig, arguments)
    directory = RunDirectory.open(options.run, key="run")
    config = changed_config(directory, changes, options.trust)
    from coterie.run.cluster_page import ClusterPage

    page = directory.path / "clusters.html"
    page = page if options.out is None else local_path("out", options.out)
    make_writable("out" if options.out else "run", page.parent, shared=bool(options.out))
    check_replaceable("out", page)
    ClusterPage(directory, config, options.pictures, options.samples, _watched).write(page)
    Terminal().print(display_path(page), soft_wrap=True, highlight=False)
    return 0


def _watched(items: Iterable[Any], total: int) -> Iterator[Any]:
    """Yield items with a progress bar on stderr."""
    yield from track(items, "looking", total=total, console=Terminal(stderr=True))


if __name__ == "__main__":
    run_program(main)
