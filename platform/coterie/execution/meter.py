"""Means of the values that training steps return, for every executor."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from coterie.contract.client import Fit

_MAX_PENDING = 256
"""Steps whose scalars stay on the device before they are summed."""


class Meter:
    """Means of the scalars that `training_step` returns, read from the device only now and then."""

    def __init__(self) -> None:
        self.steps = 0
        self._sums: dict[str, float] = defaultdict(float)
        self._waiting: dict[str, list[Tensor]] = defaultdict(list)

    def add(self, outputs: Tensor | Mapping[str, Any]) -> None:
        """Add one step's output: a loss, or a mapping with "loss" and other scalars."""
        scalars = outputs if isinstance(outputs, Mapping) else {"loss": outputs}
        for name, scalar in scalars.items():
            value = torch.as_tensor(scalar).detach()
            if value.numel() == 1:
                self._waiting[name].append(value if value.dim() == 0 else value.reshape(()))
        self.steps += 1
        if self.steps % _MAX_PENDING == 0:
            self._sum_pending()

    def fit(self) -> Fit:
        """Return the number of steps, and the mean of each scalar."""
        self._sum_pending()
        means = {name: value / self.steps for name, value in self._sums.items()}
        return Fit(steps=self.steps, metrics=means)

    def _sum_pending(self) -> None:
        for name, scalars in self._waiting.items():
            self._sums[name] += sum(torch.stack(scalars).double().tolist())
            scalars.clear()


class VmapMeter:
    """A meter of several clients that take their steps together."""

    def __init__(self, clients: int) -> None:
        self._steps = [0] * clients
        self._sums: list[dict[str, float]] = [defaultdict(float) for _ in range(clients)]
        self._waiting: dict[str, list[tuple[Sequence[int], Tensor]]] = defaultdict(list)
        self._pending = 0

    def add(self, clients: Sequence[int], outputs: Mapping[str, Tensor]) -> None:
        """Add one step of some clients.

        Args:
            clients: Which; their numbers from 0.
            outputs: "loss" and other scalars, each (clients,).
        """
        for name, scalars in outputs.items():
            self._waiting[name].append((clients, scalars.detach()))
        for client in clients:
            self._steps[client] += 1
        self._pending += 1
        if self._pending == _MAX_PENDING:
            self._sum_pending()

    def fits(self) -> list[Fit]:
        """Return each client's number of steps, and the mean of each scalar."""
        self._sum_pending()
        return [
            Fit(steps=steps, metrics={name: value / steps for name, value in sums.items()})
            for steps, sums in zip(self._steps, self._sums, strict=True)
        ]

    def _sum_pending(self) -> None:
        for name, added in self._waiting.items():
            clients = [client for some, _ in added for client in some]
            values = torch.cat([scalars for _, scalars in added]).double().tolist()
            for client, value in zip(clients, values, strict=True):
                self._sums[client][name] += value
        self._waiting.clear()
        self._pending = 0
