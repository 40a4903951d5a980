"""Show and keep a split without training: `python -m ray_jobs.partition experiment=NAME`."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from coterie.commands.compose import compose
from coterie.commands.program import run_command, run_program
from coterie.errors import DataError

_OUT = "out="
_HELP = """\
usage: python -m ray_jobs.partition experiment=NAME [out=DIR]
         [GROUP=CHOICE ...] [KEY=VALUE ...]

Shows how an experiment's samples are spread over its clients, and writes
partition.png and partition.parquet into out=DIR (partition/). Another run takes
the very same split with partition=file partition.path=DIR/partition.parquet.
The experiments and keys are those of python -m ray_jobs.train --help.
"""


def main(arguments: Sequence[str]) -> int:
    """Show and write the split that the arguments ask for.

    Returns:
        The exit code: 0 done; 2 config or data refused.
    """
    return run_command(_partition, arguments, lambda *_: _HELP)


def _partition(arguments: Sequence[str]) -> int:
    outs = [argument for argument in arguments if argument.startswith(_OUT)]
    config = compose(*(argument for argument in arguments if argument not in outs))
    # Imported only now: a mistyped key is answered at once, not after PyTorch has loaded.
    from coterie.evaluation.label_distribution import (
        class_spread,
        class_table,
        client_names,
        label_distribution_figure,
    )
    from coterie.run.data import read_and_split
    from datamodules.partition_files import write_partition

    data, parts = read_and_split(config)
    folder = Path(outs[-1].removeprefix(_OUT) if outs else "partition").expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        counts, names = class_spread(data, parts)
        clients = client_names(data, parts)
        label_distribution_figure(counts, names, folder / "partition.png", clients)
        write_partition(folder / "partition.parquet", parts, data)
    except OSError as error:
        raise DataError(f"out={folder}: it cannot be written ({error}); choose another.") from error
    console = Console()
    console.print(class_table(counts, names, clients))
    console.print(f"{folder}/partition.png, {folder}/partition.parquet", soft_wrap=True)
    return 0


if __name__ == "__main__":
    run_program(main)
