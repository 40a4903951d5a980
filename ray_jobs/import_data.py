"""Import data into shards: `python -m ray_jobs.import_data data=CHOICE data.path=DIR out=DIR`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt
from rich.console import Console

from coterie.commands.arguments import read_values
from coterie.commands.compose import read_choice
from coterie.commands.help_text import command_help
from coterie.commands.program import run_command, run_program
from coterie.config.component import Component, load_target, target_of
from coterie.config.loading import load_component, section_model
from coterie.errors import ConfigError

_ABOUT = (
    "Copies a data set into shards: memory-mapped files of pictures as they are encoded, or of "
    "vectors, with an index. Training then reads from them what a batch needs, so that the data "
    "may be larger than memory: data=shards data.path=OUT data.size=64. Every picture is decoded "
    "once here; those that cannot be read are all named at the end."
)
_USAGE = (
    "usage: python -m ray_jobs.import_data data=CHOICE [data.KEY=VALUE ...] out=DIR\n"
    "         [KEY=VALUE ...]\n"
    "       (python -m ray_jobs.train --help data=CHOICE lists its keys)"
)
_READ_LATER = ("limit", "limit_test", "size", "split", "mode", "stream")
"""Keys of a data set that change what is read; shards hold the samples as they are."""


class ImportConfig(Component):
    """Where to, and how."""

    out: Annotated[str, Field(min_length=1)]
    """The folder to write, which must not exist or be empty."""
    shard_mb: PositiveInt = 64
    """About how large a shard becomes, in MB."""
    on_error: Literal["refuse", "skip"] = "refuse"
    """What to do about pictures that cannot be read: name them all and write nothing, or leave them
    out and list them in skipped.txt."""


def main(arguments: Sequence[str]) -> int:
    """Import what the arguments name.

    Returns:
        The exit code: 0 done; 2 arguments or data refused.
    """
    return run_command(
        _import,
        arguments,
        lambda *_: command_help(
            _ABOUT,
            _USAGE,
            ImportConfig,
            {"0": "done", "2": "the arguments or the data were refused"},
        ),
    )


def _import(arguments: Sequence[str]) -> int:
    choices = [argument for argument in arguments if argument.startswith("data=")]
    if not choices:
        raise ConfigError("data: none is chosen; give data=class_folders or another, see --help.")
    values = read_values([argument for argument in arguments if argument not in choices])
    section: dict[str, Any] = {
        **read_choice("data", choices[-1].removeprefix("data=")),
        **values.pop("data", {}),
    }
    for key in _READ_LATER:
        if key in section:
            raise ConfigError(
                f"data.{key}: shards hold the samples as they are; set it where they are read."
            )
    options = load_component(ImportConfig, values)
    model = section_model("data", section)
    config = load_component(
        model, {key: value for key, value in section.items() if key != "target"}, "data."
    )
    from datamodules.base import DataSet
    from datamodules.importing import import_data

    data = load_target(target_of(config))(config)
    if not isinstance(data, DataSet):
        raise ConfigError(f"{choices[-1]}: it cannot be imported; choose a data set of samples.")
    out = Path(options.out).expanduser()
    found = import_data(data, out, shard_bytes=options.shard_mb * 2**20, on_error=options.on_error)
    console = Console(soft_wrap=True, highlight=False)
    for half, imported in found.items():
        sizes = sorted(imported.shapes)
        shown = "×".join(map(str, sizes[0])) if len(sizes) == 1 else f"{len(sizes)} sizes"
        console.print(
            f"{half}: {imported.samples:,} samples ({shown}), {len(imported.bad)} left out"
        )
    console.print(f"data=shards data.path={out}", markup=False)
    return 0


if __name__ == "__main__":
    run_program(main)
