"""What a round costs besides training: clients that send a 2 MB model back as it came.

2 Ray actors, exact sums, the whole engine with its checks, accounting and metrics. Times are from
a round's start until it is tracked; CPU seconds are those of the driver and both actors.
"""

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from coterie import Federation
from coterie.config.schema import (
    CheckpointConfig,
    ClusterConfig,
    EvaluationConfig,
    RunConfig,
    TrackingConfig,
)
from coterie.datamodules.augmentations import NoAugmentation
from coterie.networks.encoders import MLP
from tests.benchmarks.noop import NoOp, Pairs, Rows
from tests.benchmarks.processes import actors, cpu_seconds, pss_mb, store_mb

TITLE = "Rounds of clients that do nothing: 2 MB model, 2 actors, local Ray"
ROUNDS = {100: 31, 1_000: 7, 10_000: 3}


class Watch:
    """An observer that notes each round's seconds, CPU seconds, the driver's, and memory in MB."""

    def __init__(self):
        self.seconds, self.cpu, self.driving = [], [], []
        self.driver, self.actors, self.store = [], [], []
        self._pids, self._begun = None, None

    def __getattr__(self, name):
        return lambda *args, **kwargs: None

    def phase_started(self, *_):
        self._pids = self._pids or [os.getpid(), *actors()]
        alone = cpu_seconds(self._pids[:1])
        self._begun = cpu_seconds(self._pids), time.perf_counter(), alone

    def phase_finished(self, *_):
        self.seconds.append(time.perf_counter() - self._begun[1])
        self.cpu.append(cpu_seconds(self._pids) - self._begun[0])
        self.driving.append(cpu_seconds(self._pids[:1]) - self._begun[2])
        self.driver.append(pss_mb(self._pids[:1]))
        self.actors.append(pss_mb(self._pids[1:]))
        self.store.append(store_mb() if self._pids[1:] else 0.0)


def measure(clients, rounds, kept=0, every=0, elements=500_000, actors=2):
    """Run so many rounds; what was seen before the first and after each.

    Args:
        clients: Number of clients, all of which take part.
        rounds: Number of rounds.
        kept: Float32 numbers of each client's state.
        every: Rounds between checkpoints; 0: one at the end.
        elements: Float32 numbers of the model.
        actors: Number of actors; 0: in this process.
    """
    cluster = ClusterConfig(num_actors=actors) if actors else ClusterConfig(backend="serial")
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        config = RunConfig(
            method=NoOp.Config(rounds=rounds, kept=kept, elements=elements),
            data=Rows.Config(samples=2 * clients),
            partition=Pairs(clients=clients),
            encoder=MLP(),
            augmentation=NoAugmentation(),
            cluster=cluster,
            checkpoint=CheckpointConfig(every=every),
            evaluation=EvaluationConfig(
                every=0, figures=False, linear_probe=False, knn=False, kmeans_baseline=False
            ),
            tracking=TrackingConfig(progress="none"),
            run_dir=str(Path(folder) / "run"),
        )
        Federation(config, watch).run()
    return watch


def table():
    """Seconds of a round by number of clients, as a Markdown table."""
    rows = [
        "| clients | rounds | first, s | median, s | min | max | CPU s a round "
        "| the driver's, ms a client |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for clients, rounds in ROUNDS.items():
        seen = measure(clients, rounds)
        first, *later = seen.seconds
        cpu = statistics.mean(seen.cpu[1:])
        driving = statistics.mean(seen.driving[1:]) / clients * 1e3
        rows.append(
            f"| {clients:,} | {rounds} | {first:.2f} | {statistics.median(later):.3f} "
            f"| {min(later):.3f} | {max(later):.3f} | {cpu:.3f} "
            f"| {driving:.3f} |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    sys.stdout.write(f"## {TITLE}\n\n{table()}\n")
