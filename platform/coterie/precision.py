"""Losses in float32 or wider, independent of the networks' training precision.

Under autocast a matrix product has dtype bfloat16 or float16, and on CPUs so do the operations on
it. Three digits suffice for activations, but not for similarities over a small temperature, for
counts, or for differences of squares.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

import torch
from torch import Tensor
from torch.nn import functional

P = ParamSpec("P")


def widened(x: Tensor) -> Tensor:
    """Convert to float32; float64 stays as it is."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def unit_rows(x: Tensor) -> Tensor:
    """Normalise rows (n, d) to unit length, in float32 or wider; a row of zeros stays zero."""
    return functional.normalize(widened(x), dim=1)


def in_float32(loss: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Make a function compute in float32 or wider: floating tensors widened, autocast off."""

    @wraps(loss)
    def wide(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        given = [_widened(value) for value in args]
        named = {name: _widened(value) for name, value in kwargs.items()}
        device = next((x.device.type for x in given if isinstance(x, Tensor)), "cpu")
        if not torch.is_autocast_enabled(device):
            return loss(*given, **named)
        with torch.autocast(device, enabled=False):
            return loss(*given, **named)

    return wide


def _widened(value: Any) -> Any:
    return widened(value) if isinstance(value, Tensor) and value.is_floating_point() else value


cross_entropy = in_float32(functional.cross_entropy)
"""PyTorch's cross-entropy, which on CPUs would compute in autocast's bfloat16."""
