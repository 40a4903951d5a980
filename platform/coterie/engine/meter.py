"""Means of what `training_step` returns."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from coterie.contract.client import Fit


class Meter:
    """Means of the scalars that `training_step` returns, summed on the device."""

    def __init__(self) -> None:
        self.steps = 0
        self._sums: dict[str, Tensor] = {}

    def add(self, outputs: Tensor | Mapping[str, Any]) -> None:
        """Take one step's outputs: a loss, or a mapping with "loss" and other scalars."""
        scalars = outputs if isinstance(outputs, Mapping) else {"loss": outputs}
        for name, scalar in scalars.items():
            value = torch.as_tensor(scalar).detach().double()
            self._sums[name] = self._sums[name] + value if name in self._sums else value
        self.steps += 1

    def fit(self) -> Fit:
        """Steps and means."""
        means = {name: value.item() / self.steps for name, value in self._sums.items()}
        return Fit(steps=self.steps, metrics=means)
