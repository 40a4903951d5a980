"""What federation costs a user's module: one plain Trainer and a round of one client, in turns.

`python -m tests.benchmarks own_module`. Both train the same module on the same 1,000 batches. A
round's time is from its start until it is tracked: what is sent, summed and written is in it. CPU
seconds are those of the driver and the actor.
"""

import os
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path

import lightning
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from coterie import Federation
from tests.benchmarks.bare import network
from tests.benchmarks.processes import actors, cpu_seconds

TITLE = "A module of your own: a round of one client against one plain Trainer, 1,000 steps"
TURNS, STEPS, BATCH = 7, 1_000, 32
BACKENDS = {"serial": {"backend": "serial"}, "one Ray actor": {"num_actors": 1}}


def perceptron():
    """Two layers, whose step is so short that every cost of a step is seen."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


NETWORKS = {"perceptron, 51,000 parameters": perceptron, "two convolutions, 106,000": network}


class Classifier(lightning.LightningModule):
    """A module as anybody has it; it logs in each step."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def training_step(self, batch, batch_idx):
        loss = cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Watch:
    """An observer that notes the seconds and CPU seconds of each phase."""

    def __init__(self):
        self.found, self._pids, self._begun = [], None, (0.0, 0.0)

    def __getattr__(self, name):
        return lambda *args, **kwargs: None

    def _now(self):
        return time.perf_counter(), cpu_seconds(self._pids)

    def phase_started(self, *_):
        self._pids = [os.getpid(), *actors()]
        self._begun = self._now()

    def phase_finished(self, *_):
        self.found.append(tuple(map(float.__sub__, self._now(), self._begun)))


def module(build):
    """The module, the same in each call."""
    torch.manual_seed(0)
    return Classifier(build())


def loader(steps):
    """Batches of random images and classes."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(steps * BATCH, 1, 28, 28, generator=generator)
    labels = torch.randint(10, (steps * BATCH,), generator=generator)
    return DataLoader(TensorDataset(images, labels), BATCH, shuffle=True)


def plain(build, data):
    """Seconds and CPU seconds of one epoch by a plain Trainer."""
    own, pids = module(build), [os.getpid()]
    started, cpu = time.perf_counter(), cpu_seconds(pids)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lightning.Trainer(
            accelerator="cpu",
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        ).fit(own, data)
    return time.perf_counter() - started, cpu_seconds(pids) - cpu


def federated(build, data, cluster):
    """Seconds and CPU seconds of one epoch of one client."""
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        Federation(
            module=module(build),
            data=data,
            view=watch,
            clients=1,
            rounds=1,
            cluster=cluster,
            run_dir=Path(folder) / "run",
            overrides=["tracking.progress=none", "evaluation.figures=false"],
        ).run()
    return watch.found[0]


def measure(build, cluster, turns=TURNS, steps=STEPS):
    """Pairs of the plain Trainer and of the round, in each turn after a first that warms up.

    Either goes first in every other turn, since the second finds warm caches.
    """
    data, pairs = loader(steps), []
    for turn in range(turns + 1):
        first = None if turn % 2 else plain(build, data)
        second = federated(build, data, cluster)
        pairs.append((first or plain(build, data), second))
    return pairs[1:]


def table(turns=TURNS):
    """Medians of the turns, as a Markdown table."""
    rows = [
        "| network | backend | plain Trainer, s | round, s | ratio (of the turns) "
        "| ratio of CPU seconds (of the turns) |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    torch.set_num_threads(1)
    for name, build in NETWORKS.items():
        for backend, cluster in BACKENDS.items():
            pairs = measure(build, cluster, turns)
            columns = zip(*pairs, strict=True)
            alone, round_ = (statistics.median(s for s, _ in part) for part in columns)
            ratios = " | ".join(_ratios(pairs, place) for place in (0, 1))
            rows.append(f"| {name} | {backend} | {alone:.2f} | {round_:.2f} | {ratios} |")
    return "\n".join(rows)


def _ratios(pairs, place):
    found = sorted(round_[place] / alone[place] for alone, round_ in pairs)
    return f"{statistics.median(found):.3f} ({', '.join(f'{ratio:.3f}' for ratio in found)})"


if __name__ == "__main__":
    sys.stdout.write(f"## {TITLE}\n\n{table()}\n")
