"""Training on two views of each image: Coterie and lightly in turns.

`python -m tests.benchmarks.lightly_training PYTHON`, where PYTHON has `lightly` and Coterie. Both
train on both cores, on real images, in batches of 128, and are timed behind a first epoch. Lightly
runs by the fastest of `SETTINGS`, which is found first, for each network and precision.
"""

import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from coterie.commands.compose import compose
from coterie.run.data import read_and_split
from tests.benchmarks.training_rate import rate_apart

TITLE = "Training on two views: SimCLR and BYOL against lightly"
TURNS = 3
ROUNDS = 3
PEER = Path(__file__).with_name("peer_lightly.py")
NETWORKS = {
    "conv3": ("data=mnist", "encoder=conv3"),
    "conv4": ("data=cifar10", "encoder=conv4"),
    "resnet18": ("data=cifar10", "encoder=resnet18"),
}
IMAGES = {"conv3": 1024, "conv4": 1024, "resnet18": 256}
SETTINGS = [
    {"workers": workers, "threads": threads, "channels_last": last}
    for workers, threads, last in (
        *((0, 2, True), (1, 1, True), (1, 2, True)),
        *((2, 1, True), (2, 2, True), (2, 2, False)),
    )
]


def train(method, network, precision):
    """Images a second of Coterie's rounds behind the first, in a process of its own."""
    own = (f"experiment={method}", f"precision={precision}", f"method.rounds={ROUNDS}")
    fixed = ("method.epochs=1", "method.batch_size=128", "augmentation=natural", "executor=bare")
    here = ("cluster=serial", "cluster.threads_per_client=2", f"data.limit={IMAGES[network]}")
    return rate_apart(IMAGES[network], *own, *NETWORKS[network], *fixed, *here).images


def pictures(network, folder):
    """The path of the same images for lightly, as PIL takes them."""
    limit = f"data.limit={IMAGES[network]}"
    data, _ = read_and_split(compose("experiment=simclr", *NETWORKS[network], limit))
    samples = np.ascontiguousarray(data.samples.transpose(0, 2, 3, 1).squeeze())
    np.savez(folder / f"{network}.npz", pictures=samples)
    return folder / f"{network}.npz"


def measure(*command):
    """What the command prints: images a second."""
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return float(done.stdout.splitlines()[-1])


def rows(python, networks, precisions):
    """A row per method, network and precision, as a Markdown table."""
    yield "| method | network | precision | Coterie, images/s | lightly | ratio (of the turns) |"
    yield "| --- | --- | --- | --- | --- | --- |"
    with tempfile.TemporaryDirectory() as name:
        for network, precision in itertools.product(networks, precisions):
            path = pictures(network, Path(name))
            chosen = {"encoder": network, "precision": precision}
            chosen |= {"accelerator": "cpu", "batch": 128}

            def lightly(method, setting, path=path, chosen=chosen):
                options = json.dumps({**chosen, "method": method, **setting})
                return measure(python, PEER, path, options)

            best = max(SETTINGS, key=lambda setting: lightly("simclr", setting))
            yield f"<!-- lightly, {network}, {precision}: {best} -->"
            for method in ("simclr", "byol"):
                tasks = [
                    (train(method, network, precision), lightly(method, best)) for _ in range(TURNS)
                ]
                ours, theirs = (statistics.median(column) for column in zip(*tasks, strict=True))
                ratios = sorted(one / other for one, other in tasks)
                yield (
                    f"| {method} | {network} | {precision} | {ours:,.0f} | {theirs:,.0f} "
                    f"| {statistics.median(ratios):.2f} ({', '.join(f'{r:.2f}' for r in ratios)}) |"
                )


if __name__ == "__main__":
    for row in rows(sys.argv[1], sys.argv[2:] or NETWORKS, ("32-true", "bf16-mixed")):
        sys.stdout.write(f"{row}\n")
        sys.stdout.flush()
