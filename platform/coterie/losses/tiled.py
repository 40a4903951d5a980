"""The contrastive loss in tiles: value and gradient without an n × n matrix.

Both passes go over square blocks of anchors and partners. The forward pass sums each anchor's
denominator ξ block by block; the backward pass recomputes each block. Beyond the inputs and their
gradients, memory holds a few blocks, for any n. Similarities of unit vectors are at most 1, so 1/τ
bounds all logits: exponentials are taken relative to it, without a running maximum. Similarities
within a view are symmetric, so half of its blocks suffice.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from coterie.errors import ConfigError
from coterie.losses.plain import check_views

TILE = 1024
"""Rows and columns of a block: 4 MB in float32, which fit in a CPU's cache."""
_SMALLEST_NORM = 1e-12  # minimum divisor in functional.normalize


def tiled_contrastive_loss(
    u: Float[Tensor, "n d"],
    v: Float[Tensor, "n d"],
    temperature: float,
    include_positive: bool = False,
    tile: int = TILE,
) -> Float[Tensor, ""]:
    """Return `plain_contrastive_loss`, up to rounding, in memory O(n d + tile²).

    Computed in float32 or wider, also under autocast and for half-precision inputs; in float64 if
    exponentials of similarities over τ would leave float32's range.

    Args:
        u: One view's projections, the anchors, n ≥ 2.
        v: The other view's; row i of both is sample i.
        temperature: τ, at least 0.003.
        include_positive: Whether ξ also holds the positive pair.
        tile: Number of anchors, and of partners, in a block.

    Returns:
        The loss; it can be differentiated once.

    Raises:
        ConfigError: If τ is too small or `tile` is not positive.
        ContractError: If the shapes differ or there are fewer than two rows.
    """
    check_views(u, v, temperature)
    if tile < 1:
        raise ConfigError(f"tile={tile}: a block has one row or more; {TILE} is usual.")
    if not _in_range(temperature, torch.float64):
        raise ConfigError(f"temperature={temperature}: the tiled loss needs 0.003 or more.")
    loss: Tensor = _Tiled.apply(u, v, _Options(temperature, include_positive, tile))
    return loss


class _Options(NamedTuple):
    temperature: float
    include_positive: bool
    tile: int


class _Tiled(torch.autograd.Function):
    """Forward: ξ, relative to e^{1/τ}. Backward: FedMCC's eq. (15) and (16), corrected."""

    @staticmethod
    def forward(
        ctx: Any, u: Float[Tensor, "n d"], v: Float[Tensor, "n d"], options: _Options
    ) -> Float[Tensor, ""]:
        with torch.autocast(u.device.type, enabled=False):
            unit_u, unit_v = _unit(u, options), _unit(v, options)
            xi = unit_u.new_zeros(len(u))
            for rows, columns in _pairs(len(u), options.tile):
                block = _exponentials(unit_u, unit_u, rows, columns, options)
                xi[rows] += block.sum(dim=1)
                if rows != columns:
                    xi[columns] += block.sum(dim=0)
            for rows, columns in _all(len(u), options.tile):
                block = _exponentials(unit_u, unit_v, rows, columns, options)
                xi[rows] += block.sum(dim=1)
            similarities = (unit_u * unit_v).sum(dim=1)
            loss = (xi.log() + (1.0 - similarities) / options.temperature).mean()
        ctx.save_for_backward(u, v, xi)
        ctx.options = options
        return loss.to(torch.promote_types(u.dtype, torch.float32))

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, upstream: Float[Tensor, ""]
    ) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d"], None]:
        u, v, xi = ctx.saved_tensors
        options = ctx.options
        with torch.autocast(u.device.type, enabled=False):
            unit_u, unit_v = _unit(u, options), _unit(v, options)
            weights = xi.reciprocal()
            towards_u, towards_v = -unit_v, -unit_u
            for rows, columns in _pairs(len(u), options.tile):
                block = _exponentials(unit_u, unit_u, rows, columns, options)
                block.mul_(weights[rows, None] + weights[columns])
                towards_u[rows].addmm_(block, unit_u[columns])
                if rows != columns:
                    towards_u[columns].addmm_(block.T, unit_u[rows])
            for rows, columns in _all(len(u), options.tile):
                block = _exponentials(unit_u, unit_v, rows, columns, options)
                block.mul_(weights[rows, None])
                towards_u[rows].addmm_(block, unit_v[columns])
                towards_v[columns].addmm_(block.T, unit_u[rows])
            scale = upstream.to(xi.dtype) / (len(u) * options.temperature)
            for rows in _slices(
                len(u), options.tile
            ):  # in place: full-size temporaries would cost n d each
                for towards, x, unit in ((towards_u, u, unit_u), (towards_v, v, unit_v)):
                    towards[rows] = on_sphere(
                        towards[rows], x[rows].to(xi.dtype), unit[rows], scale
                    )
        return towards_u.to(u.dtype), towards_v.to(v.dtype), None


def on_sphere(
    direction: Float[Tensor, "n d"],
    rows: Float[Tensor, "n d"],
    unit: Float[Tensor, "n d"],
    scale: float | Float[Tensor, ""],
) -> Float[Tensor, "n d"]:
    """Apply the derivative of the cosine to a vector g: (g − ⟨g, û⟩ û) / ‖u‖, times `scale`."""
    tangent = direction - (direction * unit).sum(dim=1, keepdim=True) * unit
    norm: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp_min(_SMALLEST_NORM)
    return scale * tangent / norm


def _exponentials(
    unit_u: Float[Tensor, "n d"],
    partners: Float[Tensor, "n d"],
    rows: slice,
    columns: slice,
    options: _Options,
) -> Float[Tensor, "rows columns"]:
    """Return e^{(s(u_i, w_j) − 1)/τ} of a block; 0 for i = j unless that pair counts."""
    scale = 1.0 / options.temperature
    bound = unit_u.new_full((1, 1), -scale)
    block = torch.addmm(bound, unit_u[rows], partners[columns].T, alpha=scale).exp_()
    if rows == columns and (partners is unit_u or not options.include_positive):
        block.fill_diagonal_(0.0)
    return block


def _all(n: int, tile: int) -> Iterator[tuple[slice, slice]]:
    """Return every block's anchors and partners."""
    return itertools.product(_slices(n, tile), _slices(n, tile))


def _slices(n: int, tile: int) -> list[slice]:
    return [slice(first, min(first + tile, n)) for first in range(0, n, tile)]


def _pairs(n: int, tile: int) -> Iterator[tuple[slice, slice]]:
    """Return the blocks on and above the diagonal."""
    return ((rows, columns) for rows, columns in _all(n, tile) if rows.start <= columns.start)


def _unit(rows: Float[Tensor, "n d"], options: _Options) -> Float[Tensor, "n d"]:
    """Return rows of unit length, in the dtype of the computation."""
    dtype = torch.promote_types(rows.dtype, torch.float32)
    dtype = dtype if _in_range(options.temperature, dtype) else torch.float64
    return functional.normalize(rows.to(dtype), dim=1)


def _in_range(temperature: float, dtype: torch.dtype) -> bool:
    """Return whether the smallest exponential, e^{−2/τ}, and its inverse fit the dtype."""
    return 2.0 / temperature < -0.95 * math.log(torch.finfo(dtype).tiny)
