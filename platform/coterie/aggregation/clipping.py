"""Clips a client's update to an L2 norm, on the lattice of the exact sums.

An update is what a client contributes minus what it received. Its values are multiples of 2^-20,
rounded towards zero, so neither rounding nor the sum makes its norm larger than the bound.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.aggregation.exact import Layout
from coterie.contract.phase import Slots, Tensors, WeightedUpdate
from coterie.contract.roles import is_statistic

STEPS = 2**20
"""Steps of the lattice per unit: one is the unit of the high limb of an exact sum."""
_SMALLER = 1 - 2.0**-40


@dataclass(frozen=True)
class Sensitivity:
    """The largest change that one client, or one sample, can make to a phase's sum.

    Attributes:
        steps: The L2 norm, over all slots together, in units of 2^-20.
        clips: Whether clients send updates that are clipped to it; else the method bounds what
            each sample adds.
    """

    steps: int
    clips: bool


def clipped(
    up: Mapping[str, WeightedUpdate], received: Slots, layouts: Mapping[str, Layout], steps: int
) -> dict[str, WeightedUpdate]:
    """Return a client's update, clipped; running statistics of BatchNorm stay as they were.

    Args:
        up: Slot to what the client contributes.
        received: Slot to what it received.
        layouts: Slot to layout.
        steps: The largest norm over all slots, in units of 2^-20; below 2^31.

    Returns:
        Slot to update, float64 multiples of 2^-20, with weight 1.
    """
    slots = sorted(up)
    updates = [layouts[s].flatten(_update(up[s].tensors, received[s])) * STEPS for s in slots]
    norm = math.sqrt(sum(float(update.square().sum()) for update in updates))
    scale = min(1.0, steps / norm) if norm else 1.0
    while _squares(whole := [(update * scale).trunc() for update in updates]) > steps**2:
        scale *= _SMALLER
    parts = zip(slots, whole, strict=True)
    return {
        slot: WeightedUpdate(weight=1, tensors=layouts[slot].split(part / STEPS))
        for slot, part in parts
    }


def _update(sent: Tensors, received: Tensors) -> dict[str, Tensor]:
    return {
        name: torch.zeros_like(value, dtype=torch.float64)
        if is_statistic(name)
        else value.detach().double() - received[name].double()
        for name, value in sent.items()
    }


def _squares(whole: list[Tensor]) -> int:
    """Return Σ x² of integers, exact up to 2^63."""
    return sum(int(part.long().square().sum()) for part in whole)
