"""Run every benchmark, or those that are named, and write their tables to the standard output."""

import sys

from tests.benchmarks import (
    checkpoints,
    clustering,
    compiled,
    fedavg,
    large_batches,
    local_training,
    masks,
    memory,
    own_module,
    rounds,
    sizes,
    small_clients,
    startup,
    states,
    streaming,
    threads_or_actors,
    whole_command,
)

BENCHMARKS = {
    benchmark.__name__.rpartition(".")[2]: benchmark
    for benchmark in (
        *(local_training, small_clients, rounds, fedavg, startup, large_batches),
        *(streaming, masks, checkpoints, whole_command, states, memory, sizes),
        *(compiled, threads_or_actors, own_module, clustering),
    )
}


def main(names):
    for name in names or BENCHMARKS:
        benchmark = BENCHMARKS[name]
        sys.stdout.write(f"\n## {benchmark.TITLE}\n\n{benchmark.table()}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
