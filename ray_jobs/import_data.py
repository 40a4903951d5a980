"""Import data into shards: `coterie import_data data=CHOICE data.path=DIR out=DIR`."""

from collections.abc import Sequence

from pydantic import PositiveInt

from coterie.commands.data_choice import build_data, separate_data
from coterie.commands.help_text import command
from coterie.commands.program import run_program
from coterie.config.component import Component, NotEmpty
from coterie.config.given_path import given_path
from coterie.config.loading import load_component
from coterie.tracking.terminal import Terminal

_ABOUT = (
    "Copies a data set into shards: memory-mapped files of pictures as they are encoded, or of "
    "vectors, with an index. Training then reads from them what a batch needs, so that the data "
    "may be larger than memory: data=shards data.path=OUT data.size=64. Every picture is decoded "
    "once here; those that cannot be read are all named at the end, or left out with "
    "data.on_error=skip."
)
_USAGE = (
    "usage: coterie import_data data=CHOICE [data.KEY=VALUE ...] out=DIR\n"
    "         [KEY=VALUE ...]\n"
    "       (coterie train --help data=CHOICE lists its keys)"
)
_READ_LATER = (
    *("limit", "limit_test", "size", "split"),
    *("mode", "fit", "levels", "stream", "feature_ranges"),
)
"""Keys of a data set that change what is read; shards store samples unchanged."""


class ImportConfig(Component):
    """Where to write the shards, and how."""

    out: NotEmpty
    """The folder to write, or its URL, which must not exist or be empty."""
    shard_mb: PositiveInt = 64
    """Approximate size of a shard in MB."""


@command(_ABOUT, _USAGE, ImportConfig, {"0": "done", "2": "the arguments or the data were refused"})
def main(arguments: Sequence[str]) -> int:
    """Import the data set that the arguments name."""
    config, values = separate_data(arguments, refused=_READ_LATER)
    options = load_component(ImportConfig, values)
    from coterie.datamodules.importing import import_data
    from coterie.datamodules.remote import is_remote, remote_path

    data = build_data(config)
    out = remote_path(options.out) if is_remote(options.out) else given_path("out", options.out)
    found = import_data(data, out, shard_bytes=options.shard_mb * 2**20)
    console = Terminal(soft_wrap=True, highlight=False)
    for half, imported in found.items():
        sizes = sorted(imported.shapes)
        shown = "×".join(map(str, sizes[0])) if len(sizes) == 1 else f"{len(sizes)} sizes"
        console.print(
            f"{half}: {imported.samples:,} samples ({shown}), {len(imported.bad)} left out"
        )
    console.print(f"data=shards data.path={out}")
    return 0


if __name__ == "__main__":
    run_program(main)
