"""Losses in float32 at least, whatever precision the networks before them train in.

Under autocast a matrix product gives bfloat16 or float16, and on CPUs so does what follows it.
Their three digits are enough for a network's activations, but not for similarities that are divided
by a small temperature, for counts, or for differences of squares.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

import torch
from torch import Tensor
from torch.nn import functional

P = ParamSpec("P")


def widened(x: Tensor) -> Tensor:
    """The same numbers in float32 at least: float64 stays as it is."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def unit_rows(x: Tensor) -> Tensor:
    """Rows (n, d) of unit length, in float32 at least; a row of zeros stays one."""
    return functional.normalize(widened(x), dim=1)


def in_float32(loss: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Let a function compute in float32 at least: its floating tensors widened, autocast off."""

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
"""PyTorch's own, which on CPUs takes over autocast's bfloat16."""
