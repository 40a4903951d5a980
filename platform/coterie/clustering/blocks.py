"""Blocks of rows that stay in a core's cache while something is computed with them.

What is computed row by row takes a fifth of the time in such blocks: memory for large intermediate
results is mapped, filled and returned each time.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Shaped
from torch import Tensor

BLOCK = 2**18
"""Values of a block: 2 MiB in float64."""
_ON_GPU = 2**23
"""Values of a block on a GPU, where each block costs the start of its kernels."""


def row_blocks(
    points: Shaped[Tensor, "n d"], *others: Shaped[Tensor, "n ..."]
) -> Iterator[tuple[Tensor, ...]]:
    """Yield consecutive rows of points, and the same rows of each of the other tensors."""
    values = BLOCK if points.device.type == "cpu" else _ON_GPU
    rows = max(1, values // max(1, points.shape[1]))
    return zip(*(torch.split(each, rows) for each in (points, *others)), strict=True)


def count_not_finite(points: Shaped[Tensor, "n d"]) -> int:
    """Return the number of rows with a value that is not finite."""
    # A row's sum is not finite if a value is not; it may also overflow, so those are looked at.
    odd = ~points.sum(dim=1).isfinite()
    return int((~points[odd].isfinite()).any(dim=1).sum())
