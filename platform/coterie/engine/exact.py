"""Weighted sums that are exact, so that no order or grouping of clients changes a bit.

A value v is split into two integers, v = h 2^-20 + l 2^-60 + rest, each multiplied by the integer
weight and summed in int64. The rest is under 2^-61. Sums of integers are associative, as averaging
over actors needs it, and as masking for secure aggregation would.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.contract.phase import Mean, Tensors
from coterie.errors import ContractError, RunError

_HIGH = 2.0**20
_LOW = 2.0**40  # between the lanes: 2^20 * 2^40 = 2^60
_MAX_WEIGHT = 2**23  # |l| <= 2^39 and 2^39 * 2^23 = 2^62
_MAX_SUM = 2**62  # of |h|, in units of 2^-20: sums of values stay under 2^42
_MAX_VALUE = 2.0**24  # no weight of a network that learns is near it


@dataclass
class Lanes:
    """A running exact sum of flattened tensors.

    Attributes:
        high: int64 (elements,), in units of 2^-20.
        low: int64 (elements,), in units of 2^-60.
        weight: The weights' sum.
        bound: The sum of weight times largest |h|, which bounds every element of `high`. It is an
            integer, so whether it is too large does not depend on the order either.
    """

    high: Tensor
    low: Tensor
    weight: int = 0
    bound: int = 0

    def merge(self, other: "Lanes") -> None:
        """Add another sum of the same tensors in place; see `add` about the range."""
        self._grow(other.weight, other.bound)
        self.high += other.high
        self.low += other.low

    def add(self, values: Tensor, weight: int, largest: float) -> None:
        """Add `weight` times the flat float64 values, at most `largest` in magnitude, in place.

        Raises:
            RunError: If the sum could leave the exact range; no order of clients would avoid it.
        """
        self._grow(weight, weight * math.ceil(largest * _HIGH))
        scaled = values * _HIGH
        high = scaled.round()
        low = scaled.sub_(high).mul_(_LOW).round_()
        self.high.add_(high.long(), alpha=weight)
        self.low.add_(low.long(), alpha=weight)

    def mean(self) -> Tensor:
        """The weighted mean, float64 (elements,); of equal values it is that value."""
        high, high_rest = _divide(self.high, self.weight)
        low, low_rest = _divide(self.low, self.weight)
        rest = high_rest / _HIGH + low_rest / (_HIGH * _LOW)
        return high / _HIGH + (low / (_HIGH * _LOW) + rest / self.weight)

    def _grow(self, weight: int, bound: int) -> None:
        if self.weight + weight > _MAX_WEIGHT:
            total = self.weight + weight
            raise RunError(
                f"Weights sum to {total}, over {_MAX_WEIGHT}; divide all weights by a number."
            )
        if self.bound + bound > _MAX_SUM:
            size, limit = (self.bound + bound) / _HIGH, _MAX_SUM / _HIGH
            raise RunError(
                f"Weighted values sum to {size:.3g}, over {limit:.3g}; training diverged."
            )
        self.weight += weight
        self.bound += bound


def _divide(total: Tensor, weight: int) -> tuple[Tensor, Tensor]:
    quotient = total.div(weight, rounding_mode="floor")
    return quotient.double(), (total - quotient * weight).double()


def _largest(slot: str, values: Tensor, weight: int) -> float:
    largest = values.abs().max().item() if values.numel() else 0.0
    if not largest <= _MAX_VALUE:
        raise ContractError(
            f"Slot {slot!r} has a value of {largest:.3g}; training diverged, lower its rate."
        )
    if not isinstance(weight, int) or weight <= 0:
        raise ContractError(f"Slot {slot!r} has weight {weight!r}; give a positive int.")
    return largest


@dataclass(frozen=True)
class Layout:
    """How a slot's tensors lie in a flat vector."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]

    @classmethod
    def of(cls, tensors: Tensors) -> "Layout":
        """The layout of a slot, its tensors in the order of their names.

        Raises:
            ContractError: If a tensor is not floating: a mean of integers is not one of them.
        """
        names = tuple(sorted(tensors))
        for name in names:
            if not tensors[name].is_floating_point():
                kind = tensors[name].dtype
                raise ContractError(
                    f"{name!r} is {kind} and cannot be averaged; give it another rule."
                )
        shapes = tuple(tuple(tensors[name].shape) for name in names)
        return cls(names, shapes, tuple(tensors[name].dtype for name in names))

    def flatten(self, tensors: Tensors) -> Tensor:
        """The tensors as one float64 vector."""
        if not self.names:
            return torch.zeros(0, dtype=torch.float64)
        return torch.cat([tensors[name].detach().reshape(-1).double() for name in self.names])

    def restore(self, flat: Tensor) -> dict[str, Tensor]:
        """The tensors of a flat float64 vector, in their own types."""
        sizes = [torch.Size(shape).numel() for shape in self.shapes]
        parts = zip(self.names, self.shapes, self.dtypes, torch.split(flat, sizes), strict=True)
        return {name: part.reshape(shape).to(dtype) for name, shape, dtype, part in parts}

    def zeros(self) -> Lanes:
        """An empty sum."""
        size = sum(torch.Size(shape).numel() for shape in self.shapes)
        return Lanes(torch.zeros(size, dtype=torch.int64), torch.zeros(size, dtype=torch.int64))


class ExactMeans:
    """Exact weighted means of several slots; slots that nobody contributes to are absent.

    Args:
        layouts: Slot to layout, for every slot that may be contributed to.
    """

    def __init__(self, layouts: dict[str, Layout]) -> None:
        self._layouts = layouts
        self.lanes: dict[str, Lanes] = {}

    def add(self, contributions: Mapping[str, Mean]) -> None:
        """Fold one client's contributions in: all of them or, if one is refused, none.

        Raises:
            ContractError: If a weight is no positive integer or a value is not finite or huge.
            RunError: If a sum could leave the exact range, which ends the run.
        """
        flat = {slot: self._layouts[slot].flatten(c.tensors) for slot, c in contributions.items()}
        largest = {slot: _largest(slot, flat[slot], c.weight) for slot, c in contributions.items()}
        for slot, contribution in contributions.items():
            lanes = self.lanes.get(slot) or self._layouts[slot].zeros()
            lanes.add(flat[slot], contribution.weight, largest[slot])
            self.lanes[slot] = lanes

    def merge(self, others: Mapping[str, Lanes]) -> None:
        """Fold another process's sums in."""
        for slot, lanes in others.items():
            if slot in self.lanes:
                self.lanes[slot].merge(lanes)
            else:
                self.lanes[slot] = Lanes(
                    lanes.high.clone(), lanes.low.clone(), lanes.weight, lanes.bound
                )

    def result(self) -> dict[str, Mean]:
        """Slot to mean, with the total weight."""
        return {
            slot: Mean(weight=lanes.weight, tensors=self._layouts[slot].restore(lanes.mean()))
            for slot, lanes in sorted(self.lanes.items())
        }
