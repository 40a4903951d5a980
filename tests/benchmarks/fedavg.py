"""FedAvg on Fashion-MNIST: rounds of Coterie on 2 actors against a bare loop in 2 processes.

Both train the two-convolution net by SGD 0.1 on batches of 10, one epoch a round, one thread each,
and average the clients' models. The bare loop's processes are started once, hold their clients'
images as float tensors, and send each round the sum of their clients' models. The two take turns,
round by round in one run: while one trains, the other's processes wait. A ratio is the median over
a run's rounds but the first, and then over the runs. `whole_command` times all around the rounds.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

from coterie import Federation
from coterie.commands.compose import compose_plain
from coterie.config.loading import load_config
from tests.benchmarks.bare import Bare

TITLE = "FedAvg on Fashion-MNIST, 2 processes of one thread"
RUNS = 5
SETTINGS = {
    "100 clients of 100 images, 10 a round": (100, 100, 10, 20),
    "10 clients of 6,000 images": (10, 6_000, 10, 2),
}
OPTIONS = (
    "experiment=fedavg_fashionmnist",
    "executor=bare",
    "cluster.num_actors=2",
    "method.batch_size=10",
    "method.learning_rate=0.1",
    "evaluation.every=0",
    "evaluation.linear_probe=false",
    "evaluation.knn=false",
    "evaluation.figures=false",
    "checkpoint.every=0",
    "tracking.progress=none",
)


class Turns:
    """An observer that lets the bare loop do a round after each of ours."""

    def __init__(self, bare, cohort):
        self._bare, self._cohort = bare, cohort
        self.ours, self.theirs, self._begun, self.acc = [], [], None, None

    def __getattr__(self, name):
        return lambda *args, **kwargs: None

    def phase_started(self, *_):
        self._begun = time.perf_counter()

    def phase_finished(self, *_):
        self.ours.append(time.perf_counter() - self._begun)
        self.theirs.append(self._bare.round(self._cohort))


def overrides(clients, images, cohort, rounds, run_dir):
    return (
        *OPTIONS,
        f"partition.clients={clients}",
        f"data.limit={clients * images}",
        f"method.participation={cohort / clients}",
        f"method.rounds={rounds}",
        f"run_dir={run_dir}",
    )


def in_turns(clients, images, cohort, rounds):
    """Seconds of our rounds and of theirs in one run."""
    bare = Bare(clients, images)  # forks before Ray is there
    tasks = Turns(bare, cohort)
    with tempfile.TemporaryDirectory() as folder:
        options = overrides(clients, images, cohort, rounds, Path(folder) / "run")
        result = Federation(load_config(compose_plain(*options)), tasks).run()
    tasks.acc = result.metrics["test"]["acc"]
    bare.close()
    return tasks


def table():
    """Seconds of a round and of the whole, memory and accuracy, as a Markdown table."""
    rows = [
        "| setting | bare, s a round | Coterie, s a round | ratio (of the runs) "
        "| first round / later | test acc |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, setting in SETTINGS.items():
        runs = [in_turns(*setting) for _ in range(RUNS)]
        ours, theirs = (
            [statistics.median(getattr(r, k)[1:]) for r in runs] for k in ("ours", "theirs")
        )
        ratios = sorted(
            statistics.median(a / b for a, b in zip(r.ours[1:], r.theirs[1:], strict=True))
            for r in runs
        )
        first = statistics.median(r.ours[0] / own for r, own in zip(runs, ours, strict=True))
        rows.append(
            f"| {name} | {statistics.median(theirs):.3f} | {statistics.median(ours):.3f} "
            f"| {statistics.median(ratios):.2f} ({', '.join(f'{r:.2f}' for r in ratios)}) "
            f"| {first:.1f} | {runs[0].acc:.3f} |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    sys.stdout.write(f"## {TITLE}\n\n{table()}\n")
