"""Whole tasks of clients with 50 samples, batch 10: Coterie's worker against a bare loop.

The model is FedAvg's two-convolution net. Both load the server's weights, train one epoch by SGD
0.1 and give the weights back; ours also resets, checks, and folds into the exact sums. They take
tasks in one process; ratios are medians of tasks' pairs, in CPU time, which other work on the
machine disturbs least, and in wall-clock time.
"""

import statistics
import sys
import time
from dataclasses import replace

import numpy as np
import torch
from torch.nn import functional

from coterie.aggregation.exact import Layout
from coterie.contract.client import ClientData, Plan
from coterie.contract.method import Task
from coterie.datamodules.augmentations import NoAugmentation
from coterie.execution.backend import Workload
from coterie.execution.batches import SeededBatches
from coterie.execution.build import build_worker
from coterie.execution.events import ClientFailed, ClientTask, PhaseRequest
from coterie.execution.packing import pack
from coterie.modules.fedavg import Classification, FedAvg
from coterie.networks.encoders import ConvNet2
from tests.builders.federation import tiny_workload

TITLE = "Tasks of clients of 50 samples, batch 10, one thread"
SAMPLES, SHARE, ROUNDS = 50, 5, 60
NAMES = {
    "bare": "bare PyTorch",
    "fit": "Coterie's plain loop",
    "task": "Coterie's whole task: checks, exact sums",
}


def workload():
    generator = np.random.default_rng(0)
    task = Task(shape=(1, 28, 28), classes=10, encoder=ConvNet2(), augmentation=NoAugmentation())
    config = tiny_workload(FedAvg.Config(batch_size=10, learning_rate=0.1), precision="32-true")
    return Workload(
        config=config.config,
        task=task,
        samples={"train": generator.integers(0, 256, (10_000, 1, 28, 28), dtype=np.uint8)},
        parts=list(generator.permutation(10_000).reshape(-1, SAMPLES)),
        labels=generator.integers(0, 10, 10_000),
    )


def bare(module, images, labels, state):
    """The same task without anything around it."""
    with torch.no_grad():
        for parameter, value in zip(module.parameters(), state, strict=True):
            parameter.copy_(value)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for rows in torch.randperm(SAMPLES).split(10):
        loss = functional.cross_entropy(
            module.classifier(module.encoder(images[rows])), labels[rows]
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in module.parameters()]


class Tasks:
    """The same clients' tasks by three ways."""

    def __init__(self):
        self._load = load = workload()
        self._worker = build_worker(load, stop=lambda: None)
        server = self._worker.method.init({}, 0)
        phase = self._worker.method.next(server)
        slots = {name: pack(tensors) for name, tensors in server.slots.items()}
        layouts = {name: Layout.of(tensors) for name, tensors in server.slots.items()}
        self._request = PhaseRequest(phase=phase, slots=slots, layouts=layouts, tasks=())
        self._module = Classification(load.config.method, load.task)
        self._state = [value.detach().clone() for value in self._module.parameters()]
        self._images = [
            torch.from_numpy(load.samples["train"][r]).float() / 255 for r in load.parts
        ]
        self._labels = [torch.from_numpy(load.labels[rows]) for rows in load.parts]

    def bare(self, clients):
        for client in clients:
            bare(self._module, self._images[client], self._labels[client], self._state)

    def fit(self, clients):
        for client in clients:
            rows = self._load.parts[client]
            data = ClientData(
                samples=self._load.samples["train"], rows=rows, labels=self._load.labels
            )
            batches = SeededBatches(data, Plan(batch_size=10, epochs=1), client, with_labels=True)
            self._worker.trainer.fit(self._module, batches, client)

    def task(self, clients):
        tasks = tuple(ClientTask(client=client, size=SAMPLES, seed=client) for client in clients)
        for event in self._worker.run(replace(self._request, tasks=tasks), 1):
            assert not isinstance(event, ClientFailed), event


def measure(rounds):
    """CPU and wall-clock seconds of a task in each round: {name: [(cpu, wall)]}."""
    tasks = Tasks()
    seconds = {name: [] for name in NAMES}
    for number in range(rounds + 1):
        clients = [(number * SHARE + i) % (10_000 // SAMPLES) for i in range(SHARE)]
        order = [*seconds][number % len(seconds) :] + [*seconds][: number % len(seconds)]
        for name in order:  # each comes first as often: what came before leaves its caches
            cpu, wall = time.process_time(), time.perf_counter()
            getattr(tasks, name)(clients)
            if number:  # the first round warms up
                spent = time.process_time() - cpu, time.perf_counter() - wall
                seconds[name].append([value / SHARE for value in spent])
    return seconds


def table():
    """Milliseconds of a task, and the ratio to the bare loop, as a Markdown table."""
    torch.set_num_threads(1)
    torch.utils.deterministic.fill_uninitialized_memory = False  # as in every worker
    seconds = {name: np.array(values) for name, values in measure(ROUNDS).items()}
    rows = [
        "| task by | CPU, ms | wall, ms | CPU ratio | wall ratio |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, values in seconds.items():
        ratios = values / seconds["bare"]
        cpu, wall = (statistics.median(column) * 1e3 for column in values.T)
        cpu_ratio, wall_ratio = (statistics.median(column) for column in ratios.T)
        rows.append(
            f"| {NAMES[name]} | {cpu:.2f} | {wall:.2f} | {cpu_ratio:.2f} | {wall_ratio:.2f} |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    sys.stdout.write(f"## {TITLE}\n\n{table()}\n")
