"""Run every benchmark and write their tables to the standard output."""

import sys

from tests.benchmarks import fedavg, large_batches, local_training, rounds, small_clients, startup


def main():
    for benchmark in (local_training, small_clients, rounds, fedavg, startup, large_batches):
        sys.stdout.write(f"\n## {benchmark.TITLE}\n\n{benchmark.table()}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
