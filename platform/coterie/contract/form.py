"""The form of what a client sends: shape, dtype and range, as a phase declares them."""

from dataclasses import dataclass
from typing import Literal

import torch

Length = int | range | None
"""Of a dimension: exactly so long, one of these lengths, or any length."""

LARGEST = 1e12
"""The largest magnitude of a floating value without a range of its own; its square is finite."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """What a record, a message or a metric has to be; anything else is its client's failure.

    Attributes:
        shape: The length of each dimension; None for any shape. A metric has none.
        dtype: The type, "floating" for any of real floating numbers, "real" for any of real
            numbers. A metric is a number of Python or NumPy.
        lowest: The smallest value; by default no integer is too small, and `-LARGEST` for others.
        highest: The largest value, likewise.
        per_sample: Whether both bounds are to be multiplied by the client's number of samples.
    """

    shape: tuple[Length, ...] | None = ()
    dtype: torch.dtype | Literal["floating", "real"] = "floating"
    lowest: float | None = None
    highest: float | None = None
    per_sample: bool = False


ANY = Form(shape=None, dtype="real")
"""The form of what a phase names without declaring its form."""

UNIT_LENGTH = 1.01
"""The largest coordinate of a vector of unit length, with room for rounding in half precision."""
