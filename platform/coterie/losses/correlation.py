"""Losses of statistics of projections: cross-correlation (DCCO) and spectral (FedSC).

The statistics are means over samples, so those of several clients are the mean of each one's,
weighted by numbers of samples.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from coterie.precision import in_float32, widened

Statistics = Mapping[str, Tensor]
"""Means over samples by name."""

_LEAST_VARIANCE = 1e-6
_ROUNDINGS = 8
"""Rounding steps of a squared mean in a difference of means of squares."""


def pair_shapes(width: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of `pair_statistics` of projections of this width."""
    one = (width,)
    return {"u": one, "v": one, "uu": one, "vv": one, "uv": (width, width)}


@in_float32
def _product(u: Tensor, v: Tensor) -> Tensor:
    return u.T @ v / len(u)


def pair_statistics(u: Float[Tensor, "n d"], v: Float[Tensor, "n d"]) -> dict[str, Tensor]:
    """Return the statistics ⟨u⟩, ⟨v⟩, ⟨u²⟩, ⟨v²⟩ (d,) and ⟨u vᵀ⟩ (d, d) of two views.

    Args:
        u: One view's projections.
        v: The other view's; row i of both is sample i.
    """
    u, v = widened(u), widened(v)
    squares = {"uu": u.square().mean(dim=0), "vv": v.square().mean(dim=0)}
    return {"u": u.mean(dim=0), "v": v.mean(dim=0), **squares, "uv": _product(u, v)}


def cross_correlation(of: Statistics) -> Float[Tensor, "d d"]:
    """Return C_ij = (⟨u_i v_j⟩ − ⟨u_i⟩⟨v_j⟩) / √(Var u_i · Var v_j), from `pair_statistics`.

    A variance counts as 1e-6 at least, which keeps gradients of constant features finite, and as
    what rounding leaves of it where the mean is thousands of times larger than the deviation.
    """
    spread_u, spread_v = _spread(of["u"], of["uu"]), _spread(of["v"], of["vv"])
    return (of["uv"] - torch.outer(of["u"], of["v"])) / torch.outer(spread_u, spread_v)


def _spread(mean: Float[Tensor, "d"], square: Float[Tensor, "d"]) -> Float[Tensor, "d"]:
    rounding = _ROUNDINGS * torch.finfo(mean.dtype).eps * mean.detach().square()
    return torch.maximum(square - mean.square(), rounding.clamp_min(_LEAST_VARIANCE)).sqrt()


def cross_correlation_loss(of: Statistics, weight: float) -> Float[Tensor, ""]:
    """Return (1/d) (Σ_i (1 − C_ii)² + λ Σ_{i≠j} C_ij²): Barlow Twins' loss, and DCCO's.

    Both papers have the sum; the mean over features lets one learning rate suit any width.

    Args:
        of: Statistics as of `pair_statistics`.
        weight: λ.

    Returns:
        The loss; 0 if the views agree and their features are uncorrelated.
    """
    found = cross_correlation(of)
    same = found.diagonal()
    others = (found - torch.diag(same)).square().sum()
    return ((1.0 - same).square().sum() + weight * others) / len(found)


def corrected(own: Statistics, shared: Statistics) -> dict[str, Tensor]:
    """Return the values of the shared statistics, with the gradient of the client's own.

    With one step on a client's whole batch, the mean of the clients' gradients is the gradient of
    the loss over all clients' batches.
    """
    return {name: shared[name].to(own[name]) + (own[name] - own[name].detach()) for name in own}


def correlation(u: Float[Tensor, "n d"], v: Float[Tensor, "n d"]) -> Float[Tensor, "d d"]:
    """Return R = ½ (⟨u uᵀ⟩ + ⟨v vᵀ⟩), the correlation matrix of both views' projections."""
    return 0.5 * (_product(u, u) + _product(v, v))


@in_float32
def shared_spectral_loss(
    u: Float[Tensor, "n d"],
    v: Float[Tensor, "n d"],
    others: Float[Tensor, "d d"],
    share: float,
) -> Float[Tensor, ""]:
    """Return FedSC's local objective: −2 ⟨uᵀ v⟩ + α ‖R‖² + 2 (1 − α) tr(R R̄).

    Args:
        u: One view's projections.
        v: The other view's.
        others: R̄, the mean of the other clients' correlation matrices, a constant.
        share: α in [0, 1]; 1 is the spectral loss of the client alone.
    """
    own = correlation(u, v)
    attract = -2.0 * (u * v).sum(dim=1).mean()
    repel = share * own.square().sum() + 2.0 * (1.0 - share) * (own * others.detach()).sum()
    return attract + repel
