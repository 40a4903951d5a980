"""The whole command, from the prompt to the prompt: Coterie and pfl-research in turns.

`python -m tests.benchmarks.whole_command PYTHON`, where PYTHON has `pfl[pytorch]`. FedAvg as in
`fedavg`: 100 clients of 100 images, 10 a round, 20 rounds, two processes of one thread.
pfl-research runs under torchrun and finds its images in one file, as floats.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from tests.benchmarks.fedavg import SETTINGS, overrides
from tests.benchmarks.processes import Peak

TITLE = "The whole command: FedAvg, 100 clients of 100 images, 20 rounds of 10"
RUNS = 5
PEER = Path(__file__).with_name("peer_pfl.py")


def commands(python, folder):
    """The commands by name; those of the last run's output go."""
    from coterie.datamodules.mnist import FashionMNIST

    setting = next(iter(SETTINGS.values()))
    found = {
        "Coterie": lambda number: (
            *(sys.executable, "-m", "coterie.jobs.train"),
            *overrides(*setting, folder / f"run-{number}"),
        )
    }
    if python:
        data = FashionMNIST(FashionMNIST.Config()).arrays()
        rows = {"x": data.samples[:10_000], "test_x": data.test_samples}
        images = {name: values.astype(np.float32) / 255 for name, values in rows.items()}
        labels = {"y": data.labels[:10_000], "test_y": data.test_labels}
        np.savez(folder / "data.npz", **images, **labels)
        run = (python, "-m", "torch.distributed.run", "--nproc-per-node", "2")
        found["pfl-research"] = lambda _: (*run, str(PEER), str(folder / "data.npz"))
    return found


def measure(command, *, watched=False):
    """Seconds of a command; if watched, its CPU seconds and its memory in MB."""
    started = time.perf_counter()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        peak = Peak(process.pid) if watched else None
        code = process.wait()
        seconds = time.perf_counter() - started
        if peak is not None:
            peak.stop()
        if code:
            errors.seek(0)
            raise RuntimeError(errors.read().decode(errors="replace")[-2000:])
    return seconds if peak is None else (peak.cpu, peak.mb)


def table(python=None):
    """Median seconds and the ratios of the turns, CPU and memory, as a Markdown table."""
    with tempfile.TemporaryDirectory() as name:
        found = commands(python, Path(name))
        tasks = [{own: measure(found[own](number)) for own in found} for number in range(RUNS)]
        watched = {own: measure(found[own](RUNS), watched=True) for own in found}
    last = list(found)[-1]
    rows = [
        f"| | s (median) | times {last} (of the turns) | CPU s | peak memory (PSS), GB |",
        "| --- | --- | --- | --- | --- |",
    ]
    for own in found:
        ratios = sorted(task[own] / task[last] for task in tasks)
        cpu, mb = watched[own]
        rows.append(
            f"| {own} | {statistics.median(task[own] for task in tasks):.1f} "
            f"| {statistics.median(ratios):.2f} ({', '.join(f'{r:.2f}' for r in ratios)}) "
            f"| {cpu:.1f} | {mb / 1e3:.2f} |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    sys.stdout.write(table(*sys.argv[1:]) + "\n")
