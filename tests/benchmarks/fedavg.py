"""FedAvg on Fashion-MNIST: rounds of Coterie on 2 actors against a bare loop in 2 processes.

Both train the two-convolution net by SGD 0.1 on batches of 10, one epoch a round, one thread each,
and average the clients' models. The bare loop's processes are started once, hold their clients'
images as float tensors, and send each round the sum of their clients' models. The two take turns,
run by run; a ratio is the median over the pairs. Memory and CPU time are of one more run: reading
a process's proportional memory stops it for tens of milliseconds.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from tests.benchmarks.bare import Bare
from tests.benchmarks.processes import cpu_seconds, descendants, pss_mb

TITLE = "FedAvg on Fashion-MNIST, 2 processes of one thread"
PAIRS = 5
SETTINGS = {
    "100 clients of 100 images, 10 a round": (100, 100, 10, 20),
    "10 clients of 6,000 images": (10, 6_000, 10, 2),
}
COMMAND = (
    sys.executable, "-m", "ray_jobs.train", "experiment=fedavg_fashionmnist", "executor=loop",
    "cluster.num_actors=2", "method.batch_size=10", "method.learning_rate=0.1",
    "evaluation.every=0", "evaluation.linear_probe=false", "evaluation.knn=false",
    "evaluation.figures=false", "checkpoint.every=0", "tracking.progress=none",
)  # fmt: skip


def coterie(clients, images, cohort, rounds, watched=False):
    """Seconds of each round and of the whole command, accuracy; if watched, memory and CPU too."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        own = (
            f"partition.clients={clients}", f"data.limit={clients * images}",
            f"method.participation={cohort / clients}", f"method.rounds={rounds}",
            f"run_dir={run_dir}",
        )  # fmt: skip
        started = time.perf_counter()
        process = subprocess.Popen([*COMMAND, *own])
        peak = Peak(process.pid) if watched else None
        if process.wait():
            raise RuntimeError(f"the run exited with {process.returncode}")
        whole = time.perf_counter() - started
        if peak is not None:
            peak.stop()
        rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
        summary = json.loads((run_dir / "summary.json").read_text())
    seconds = [row["seconds"] for row in rows if row["scope"] == "server"]
    accuracy = summary["metrics"]["test"]["acc"]
    seen = {} if peak is None else {"peak": peak.mb, "cpu": peak.cpu}
    return {"rounds": seconds, "whole": whole, "acc": accuracy, **seen}


class Peak:
    """Most memory and CPU seconds of a process and its descendants, looked at twice a second."""

    def __init__(self, pid):
        self.mb = self.cpu = 0.0
        self._pid, self._over = pid, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self):
        while not self._over.wait(0.5):
            pids = descendants(self._pid)
            self.mb = max(self.mb, pss_mb(pids))
            self.cpu = max(self.cpu, cpu_seconds(pids))

    def stop(self):
        self._over.set()
        self._thread.join()


def measure(name, pairs):
    """Runs of both, in turns: two lists of what `coterie` and `Bare.run` give."""
    clients, images, cohort, rounds = SETTINGS[name]
    ours, bare = [], []
    for _ in range(pairs):
        bare.append(Bare(clients, images).run(cohort, rounds))
        ours.append(coterie(clients, images, cohort, rounds))
    return ours, bare


def table():
    """Seconds of a round and of the whole, memory and accuracy, as a Markdown table."""
    rows = [
        "| setting | bare, s a round | Coterie, s a round | ratio (min–max) | first round / later "
        "| whole command, s | its CPU s | peak memory (PSS), GB | test acc |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, setting in SETTINGS.items():
        ours, bare = measure(name, PAIRS)
        later = [statistics.median(run["rounds"][1:]) for run in ours]
        plain = [statistics.median(run[1:]) for run in bare]
        ratios = [a / b for a, b in zip(later, plain, strict=True)]
        firsts = [run["rounds"][0] / one for run, one in zip(ours, later, strict=True)]
        whole = statistics.median(run["whole"] for run in ours)
        watched = coterie(*setting, watched=True)
        rows.append(
            f"| {name} | {statistics.median(plain):.3f} | {statistics.median(later):.3f} "
            f"| {statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f}) "
            f"| {statistics.median(firsts):.1f} "
            f"| {whole:.1f} | {watched['cpu']:.1f} | {watched['peak'] / 1e3:.2f} "
            f"| {ours[0]['acc']:.3f} |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    sys.stdout.write(f"## {TITLE}\n\n{table()}\n")
