"""What a careful person would write without any framework: two processes, plain tensors, pipes."""

import multiprocessing
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional

BATCH, RATE = 10, 0.1


def network():
    """Two convolutions with pooling and two linear layers: 105,866 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def train(net, images, labels):
    """One epoch of SGD."""
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    for rows in torch.randperm(len(images)).split(BATCH):
        loss = functional.cross_entropy(net(images[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _work(pipe, images, labels):
    torch.set_num_threads(1)
    net = network()
    while (order := pipe.recv()) is not None:
        clients, state = order
        sums = [torch.zeros_like(torch.from_numpy(value)) for value in state]
        for client in clients:
            with torch.no_grad():
                for parameter, value in zip(net.parameters(), state, strict=True):
                    parameter.copy_(torch.from_numpy(value))
            train(net, images[client], labels[client])
            for total, parameter in zip(sums, net.parameters(), strict=True):
                total.add_(parameter.detach())
        pipe.send([total.numpy() for total in sums])


class Bare:
    """Two persistent processes that train clients of Fashion-MNIST.

    Args:
        clients: How many there are.
        images: Training images of each.
    """

    def __init__(self, clients, images):
        from coterie.datamodules.mnist import FashionMNIST

        data = FashionMNIST(FashionMNIST.Config(limit=clients * images)).arrays()
        order = np.random.default_rng(0).permutation(clients * images).reshape(clients, images)
        x = [torch.from_numpy(data.samples[rows]).float() / 255 for rows in order]
        y = [torch.from_numpy(data.labels[rows]) for rows in order]
        context = multiprocessing.get_context("fork")
        self._clients, self._workers = clients, []
        torch.manual_seed(0)
        self._generator = np.random.default_rng(0)
        self._state = [value.detach().numpy() for value in network().parameters()]
        for _ in range(2):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, x, y), daemon=True)
            process.start()
            self._workers.append((ours, process))

    def run(self, cohort, rounds):
        """Seconds of each round."""
        seconds = [self.round(cohort) for _ in range(rounds)]
        self.close()
        return seconds

    def round(self, cohort):
        """Seconds of one round."""
        started = time.perf_counter()
        chosen = self._generator.choice(self._clients, cohort, replace=False)
        for (pipe, _), share in zip(self._workers, np.array_split(chosen, 2), strict=True):
            pipe.send((share, self._state))
        sums = zip(*(pipe.recv() for pipe, _ in self._workers), strict=True)
        self._state = [(one + other) / cohort for one, other in sums]
        return time.perf_counter() - started

    def close(self):
        """End the processes."""
        for pipe, process in self._workers:
            pipe.send(None)
            process.join()
