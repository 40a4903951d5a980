"""Local training of the 3-conv net: Lightning's Trainer and the plain loop against bare PyTorch.

The work is the same to the step: 28x28 grey images, batch 128, a classifier's cross-entropy, Adam.
The three take turns, so that a slow spell of the machine hits all of them; ratios are medians over
the rounds.
"""

import statistics
import sys
import time

import numpy as np
import torch
from lightning import LightningModule
from torch.nn import functional

from coterie.contract.client import ClientData, Plan
from coterie.contract.clusterer import to_unit
from coterie.execution.bare_trainer import BareTrainer
from coterie.execution.batches import SeededBatches
from coterie.execution.trainer import LightningTrainer
from coterie.networks.encoders import ConvNet3

TITLE = "Local training of the 3-conv net, one thread"
SAMPLES, BATCH, ROUNDS = 1_280, 128, 7


class Classifier(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = ConvNet3().build((1, 28, 28))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)

    def training_step(self, batch, batch_idx):
        logits = self.net(to_unit(batch["samples"]))
        return functional.cross_entropy(logits, batch["labels"])


def bare_trainer(module, batches):
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
    module.train()
    for batch in batches:
        loss = functional.cross_entropy(module.net(to_unit(batch["samples"])), batch["labels"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def measure(samples, rounds):
    """Seconds of each executor in each round: {name: [seconds]}."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (samples, 1, 28, 28), dtype=np.uint8)
    labels = rng.integers(0, 10, samples)
    data = ClientData(samples=images, rows=np.arange(samples), labels=labels)
    plan = Plan(batch_size=BATCH, epochs=1)
    runs = {
        "bare PyTorch": bare_trainer,
        "plain loop": lambda m, b: BareTrainer().fit(m, b, 0),
        "Lightning Trainer": lambda m, b: LightningTrainer().fit(m, b, 0),
    }
    seconds = {name: [] for name in runs}
    for task in range(rounds + 1):
        for name, run in runs.items():
            torch.manual_seed(0)
            module = Classifier()
            batches = SeededBatches(data, plan, 0, with_labels=True)
            started = time.perf_counter()
            run(module, batches)
            if task:  # the first one warms up
                seconds[name].append(time.perf_counter() - started)
    return seconds


def table():
    """Images a second, and the time against the bare loop, as a Markdown table."""
    torch.set_num_threads(1)
    rows = [
        "| client of | executor | images/s | time against bare PyTorch |",
        "| --- | --- | --- | --- |",
    ]
    for samples in (BATCH, SAMPLES):
        seconds = measure(samples, ROUNDS)
        bare = seconds["bare PyTorch"]
        for name, own in seconds.items():
            ratio = statistics.median(a / b for a, b in zip(own, bare, strict=True))
            rate = samples / statistics.median(own)
            rows.append(f"| {samples:,} images | {name} | {rate:,.0f} | {ratio:.2f} |")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.stdout.write(f"## {TITLE}\n\n{table()}\n")
