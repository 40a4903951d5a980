"""What a client may send: shape, dtype and range, as a phase declares them."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Length = int | range | None
"""Length of a dimension: one number, one of several, or any."""

DTYPES = frozenset(
    {
        *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool),
        *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    }
)
"""The dtypes of a run's tensors, and so of what clients send and keep: those that PyTorch computes
with and checkpoints hold."""

LARGEST = 1e12
"""The largest magnitude of a floating value without a range of its own; its square is finite."""


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """The required shape, dtype and range of a tensor, message or metric.

    Attributes:
        shape: The length of each dimension; None for any shape. A metric has none.
        dtype: The type, "floating" for any of real floating numbers, "real" for any of real
            numbers. A metric is a number of Python or NumPy.
        lowest: The smallest value; by default no integer is too small, and `-LARGEST` for others.
        highest: The largest value, likewise.
        per_sample: Whether `highest`, and `lowest` below 0, are to be multiplied by the client's
            number of samples.
        as_long_as: Another tensor of the message, which has as many rows.
    """

    shape: tuple[Length, ...] | None = ()
    dtype: torch.dtype | Literal["floating", "real"] = "floating"
    lowest: float | None = None
    highest: float | None = None
    per_sample: bool = False
    as_long_as: str | None = None


Each = float | tuple["Each", ...]
"""One value for all numbers, or nested tuples that are broadcast to them: `(1.0, 2.0)` has one for
each column, `((1.0,), (2.0,))` one for each row."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The range of a sum over samples, divided by the number of the client's samples.

    Attributes:
        highest: The largest value that one sample adds.
        lowest: The smallest; by default `-highest`.
    """

    highest: Each
    lowest: Each | None = None

    def of(self, samples: int) -> tuple[Tensor, Tensor]:
        """Return the bounds of a sum over this number of samples."""
        highest = torch.tensor(self.highest, dtype=torch.float64) * samples
        if self.lowest is None:
            return -highest, highest
        return torch.tensor(self.lowest, dtype=torch.float64) * samples, highest


ANY = TensorSpec(shape=None, dtype="real")
"""The spec of names that a phase does not declare."""

UNIT_LENGTH = 1.01
"""The largest coordinate of a vector of unit length, with room for rounding in half precision."""
