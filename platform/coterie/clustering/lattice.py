"""Arithmetic on a lattice of fixed-point numbers, where sums do not depend on their order.

Values are multiples of 2^-12, held as integers. Products of them and sums of products are integers
that float64 holds exactly. So any split of the samples over clients, any batch and any number of
threads gives the same bits.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Float64, Int, Int32, Int64, Shaped
from torch import Tensor

from coterie.clustering.blocks import BLOCK, row_blocks
from coterie.clustering.narrow_search import narrow_nearest
from coterie.errors import DataError

UNIT = 2**12
"""Steps of the lattice per unit."""
LIMIT = 2**9
"""Largest magnitude of a value."""
_ROWS = 4096
"""Rows whose products are summed at a time."""


def on_lattice(points: Float[Tensor, "*shape"]) -> Int32[Tensor, "*shape"]:
    """Round values to the lattice, as integers.

    Raises:
        DataError: If a value is not finite, or its magnitude is over 512.
    """
    found = torch.empty(points.shape, dtype=torch.int32, device=points.device)
    for given, out in zip(_pieces(points), _pieces(found), strict=True):
        steps = rounded(given)
        largest = float(steps.abs().amax()) if steps.numel() else 0.0
        if not largest <= LIMIT * UNIT:
            raise DataError(
                f"A representation has a value of {largest / UNIT:.3g}: exact sums take at most "
                f"{LIMIT}; scale the features (data.feature_ranges does so for tables)."
            )
        out.copy_(steps)
    return found


def _pieces(values: Shaped[Tensor, "*shape"]) -> Sequence[Shaped[Tensor, "m"]]:
    """Split the flattened values into blocks, without a copy if they are contiguous."""
    return torch.split(values.reshape(-1), BLOCK)


def rounded(points: Float[Tensor, "*shape"]) -> Float64[Tensor, "*shape"]:
    """Round small values to whole lattice steps, without a check of the range."""
    return (points.double() * UNIT).round()


def clipped_rows(points: Float[Tensor, "n d"], norm: float) -> Int32[Tensor, "n d"]:
    """Put rows on the lattice, and shorten them to at most `norm`, rounding included.

    Raises:
        DataError: If a value is not finite.
    """
    steps, most = points.double() * UNIT, math.floor(norm * UNIT)
    lengths = steps.norm(dim=1)
    if not bool(lengths.isfinite().all()):
        raise DataError("A representation has a value that is not finite; correct the samples.")
    longest = lengths.new_tensor(most)  # a number by a tensor would be a product with its inverse
    scale: Tensor = (longest / lengths.clamp_min(most))[:, None]
    whole: Tensor = (steps * scale).trunc()
    while len(over := torch.nonzero(whole.square().sum(dim=1) > most**2)[:, 0]):
        scale[over] *= 1 - 2.0**-40
        whole[over] = (steps[over] * scale[over]).trunc()
    return whole.int()


def off_lattice(steps: Shaped[Tensor, "*shape"]) -> Float64[Tensor, "*shape"]:
    """Convert lattice steps back to values."""
    return steps.double() / UNIT


def nearest(points: Int[Tensor, "n d"], centroids: Int[Tensor, "k d"]) -> Int64[Tensor, "n"]:
    """Return each point's nearest centroid without rounding; ties go to the lowest index."""
    search = _Search(centroids)
    return torch.cat([search.nearest(part) for (part,) in row_blocks(points)])


class _Search:
    """Search for nearest centroids without rounding errors."""

    def __init__(self, centroids: Int[Tensor, "k d"]) -> None:
        self.wide = centroids.double()
        self.half = self.wide.square().sum(dim=1) / 2
        self.narrow, self.narrow_half = self.wide.float(), self.half.float()

    def nearest(self, points: Int[Tensor, "n d"]) -> Int64[Tensor, "n"]:
        """Search in float32, and in float64, which is exact, where rounding could decide."""
        if len(self.wide) == 1:
            return torch.zeros(len(points), dtype=torch.int64, device=points.device)
        near, unsure = narrow_nearest(points.float(), self.narrow, self.narrow_half)
        if bool(unsure.any()):
            rows = points[unsure].double()
            near[unsure] = torch.addmm(self.half, rows, self.wide.T, alpha=-1).argmin(dim=1)
        return near


def cluster_sums(
    points: Int[Tensor, "n d"], assigned: Int64[Tensor, "n"], clusters: int
) -> Float64[Tensor, "k d+2"]:
    """Return each cluster's Σ x, Σ ‖x‖² and number of points, exact, in this order of columns."""
    sums = points.new_zeros(clusters, points.shape[1] + 2, dtype=torch.float64)
    for part, to in row_blocks(points, assigned):
        sums.index_add_(0, to, _columns(part))
    return sums


def sums_of_starts(
    points: Int[Tensor, "n d"], starts: Sequence[Int[Tensor, "k d"]]
) -> list[Float64[Tensor, "k d+2"]]:
    """Return the `cluster_sums` of the nearest centroids, for several sets of centroids at once."""
    searches = [_Search(start) for start in starts]
    wide = points.shape[1] + 2
    sums = [points.new_zeros(len(s.wide), wide, dtype=torch.float64) for s in searches]
    for (part,) in row_blocks(points):
        columns = _columns(part)
        for found, search in zip(sums, searches, strict=True):
            found.index_add_(0, search.nearest(part), columns)
    return sums


def _columns(points: Int[Tensor, "n d"]) -> Float64[Tensor, "n d+2"]:
    values = off_lattice(points)
    squares = values.square().sum(dim=1, keepdim=True)
    return torch.cat([values, squares, torch.ones_like(squares)], dim=1)


def products(points: Int[Tensor, "n d"]) -> Float64[Tensor, "d d"]:
    """Return Σ x xᵀ, exact while the sum of squares stays below 2^29."""
    total = points.new_zeros(points.shape[1], points.shape[1], dtype=torch.float64)
    for part in torch.split(points, _ROWS):
        values = off_lattice(part)
        total += values.T @ values
    return total
