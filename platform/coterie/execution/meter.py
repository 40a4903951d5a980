"""Means of what training steps return, for both executors."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from coterie.contract.client import Fit

_MAX_PENDING = 256
"""Steps whose scalars stay on the device before they are summed."""


class Meter:
    """Means of the scalars that `training_step` returns; the device is read every so many steps."""

    def __init__(self) -> None:
        self.steps = 0
        self._sums: dict[str, float] = defaultdict(float)
        self._waiting: dict[str, list[Tensor]] = defaultdict(list)

    def add(self, outputs: Tensor | Mapping[str, Any]) -> None:
        """Add one step's outputs: a loss, or a mapping with "loss" and other scalars."""
        scalars = outputs if isinstance(outputs, Mapping) else {"loss": outputs}
        for name, scalar in scalars.items():
            value = torch.as_tensor(scalar).detach()
            self._waiting[name].append(value if value.dim() == 0 else value.reshape(()))
        self.steps += 1
        if self.steps % _MAX_PENDING == 0:
            self._sum_pending()

    def fit(self) -> Fit:
        """Number of steps and mean of each scalar."""
        self._sum_pending()
        means = {name: value / self.steps for name, value in self._sums.items()}
        return Fit(steps=self.steps, metrics=means)

    def _sum_pending(self) -> None:
        for name, scalars in self._waiting.items():
            self._sums[name] += sum(torch.stack(scalars).double().tolist())
            scalars.clear()
