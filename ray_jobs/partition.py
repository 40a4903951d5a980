"""Show and keep a split without training: `coterie partition experiment=NAME`."""

from collections.abc import Sequence

from coterie.commands.arguments import read_values, separate
from coterie.commands.compose import compose
from coterie.commands.program import run_command, run_program
from coterie.config.about import about
from coterie.tracking.paths import check_replaceable, local_path, make_writable
from coterie.tracking.terminal import Terminal

_HELP = """\
usage: coterie partition experiment=NAME [out=DIR]
         [GROUP=CHOICE ...] [KEY=VALUE ...]

Shows how an experiment's samples are spread over its clients, and writes
partition.png and partition.parquet into out=DIR (partition/). Another run takes
the same split with partition=file partition.path=DIR/partition.parquet.
For the experiments and keys see coterie train --help.
"""


def main(arguments: Sequence[str]) -> int:
    """Show and write the split that the arguments ask for."""
    return run_command(_partition, arguments, lambda *_: _HELP)


def _partition(arguments: Sequence[str]) -> int:
    outs, rest = separate(arguments, {"out"})
    config = compose(*rest)
    from coterie.datamodules.partition_files import write_partition
    from coterie.evaluation.canvas import guarded
    from coterie.evaluation.label_distribution import (
        ClassTable,
        class_spread,
        client_names,
        label_distribution_figure,
    )
    from coterie.run.data import read_and_split

    data, parts = read_and_split(config)
    folder = local_path("out", str(read_values(outs).get("out") or "partition"))
    make_writable("out", folder)
    counts, names = class_spread(data, parts)
    clients = client_names(data, parts)
    figure, table = folder / "partition.png", folder / "partition.parquet"
    check_replaceable("out", table)
    console = Terminal()
    with guarded(figure, console.print):
        label_distribution_figure(counts, names, figure, clients, about([config]))
    write_partition(table, parts, data)
    console.print(ClassTable(counts, names, clients))
    written = [str(path) for path in (figure, table) if path.is_file()]
    console.print(", ".join(written), soft_wrap=True)
    return 0


if __name__ == "__main__":
    run_program(main)
