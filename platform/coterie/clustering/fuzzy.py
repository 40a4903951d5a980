"""Fuzzy c-means: each sample belongs to every cluster, the more the nearer.

Bezdek et al., "FCM: The fuzzy c-means clustering algorithm" (1984). All in float64.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.errors import DataError

_ROWS = 16384
"""Rows that are looked at together."""


@dataclass(frozen=True, kw_only=True)
class FuzzyMeans:
    """What fuzzy c-means found.

    Attributes:
        centroids: (k, d), of the points' type: Σ_i u_ij^m x_i / Σ_i u_ij^m.
        memberships: Σ_i u_ij, the clusters' supports, float64 (k,), of these u.
        powers: Σ_i u_ij^m, float64 (k,).
        objective: (1/n) Σ_ij u_ij^m ‖x_i − c_j‖², of the centroids before that gave these u.
    """

    centroids: Tensor
    memberships: Tensor
    powers: Tensor
    objective: float


def memberships(points: Tensor, centroids: Tensor, fuzziness: float) -> Tensor:
    """u_ij = 1 / Σ_l (‖x_i − c_j‖ / ‖x_i − c_l‖)^(2/(m−1)); a point on a centroid is its own.

    Distances are taken from the differences themselves, so a row's bits do not depend on others.

    Args:
        points: x (n, d).
        centroids: c (k, d).
        fuzziness: m > 1; near 1 it is the nearest centroid's, for large m all are alike.

    Returns:
        float64 (n, k), whose rows sum to 1.
    """
    exact = "donot_use_mm_for_euclid_dist"
    away = torch.cdist(points.double(), centroids.double(), compute_mode=exact)
    return _shares(away.square(), fuzziness)


def fuzzy_means(
    points: Tensor, centroids: Tensor, *, fuzziness: float, iterations: int
) -> FuzzyMeans:
    """Iterations of fuzzy c-means: c_j ← Σ_i u_ij^m x_i / Σ_i u_ij^m.

    A centroid that no point belongs to, by what float64 can tell, stays where it is.

    Args:
        points: x (n, d), n ≥ 1.
        centroids: Where it starts (k, d).
        fuzziness: m > 1.
        iterations: How many, at least one.

    Raises:
        DataError: If shapes do not fit, a number is out of range or a value is not finite.
    """
    _check(points, centroids, fuzziness, iterations)
    centres = centroids.double()
    for _ in range(iterations):
        totals = _pass(points, centres, fuzziness)
        centres = ratio_where_positive(totals.sums, totals.powers, centres)
    return FuzzyMeans(
        centroids=centres.to(points.dtype),
        memberships=totals.memberships,
        powers=totals.powers,
        objective=totals.objective / len(points),
    )


def ratio_where_positive(sums: Tensor, weights: Tensor, otherwise: Tensor) -> Tensor:
    """Rows of weighted sums (k, d) by their weights (k,); other rows where a weight is 0.

    A denormal weight counts as 0: too few of its digits are left.
    """
    enough = (weights >= torch.finfo(weights.dtype).tiny)[:, None]
    return torch.where(enough, sums / torch.where(enough, weights[:, None], 1.0), otherwise)


@dataclass(frozen=True, kw_only=True)
class _Totals:
    """Sums over all points: Σ u, Σ u^m, Σ u^m x, Σ u^m d²."""

    memberships: Tensor
    powers: Tensor
    sums: Tensor
    objective: float


def _pass(points: Tensor, centroids: Tensor, fuzziness: float) -> _Totals:
    members, powers = centroids.new_zeros(2, len(centroids))
    sums, objective = torch.zeros_like(centroids), 0.0
    for block in torch.split(points, _ROWS):
        rows = block.double()
        products = rows @ centroids.T
        lengths = rows.square().sum(dim=1)[:, None] + centroids.square().sum(dim=1)
        squared = (lengths - 2 * products).clamp_min(0)
        u = _shares(squared, fuzziness)
        power = u.pow(fuzziness)
        members, powers = members + u.sum(dim=0), powers + power.sum(dim=0)
        sums = sums + power.T @ rows
        objective += float((power * squared).sum())
    return _Totals(memberships=members, powers=powers, sums=sums, objective=objective)


def _shares(squared: Tensor, fuzziness: float) -> Tensor:
    """Memberships of squared distances (n, k), in logarithms: 0 and large powers do no harm."""
    logs = squared.clamp_min(torch.finfo(squared.dtype).tiny).log()
    return (-logs / (fuzziness - 1)).softmax(dim=1)


def _check(points: Tensor, centroids: Tensor, fuzziness: float, iterations: int) -> None:
    if points.ndim != 2 or centroids.ndim != 2 or points.shape[1] != centroids.shape[1]:
        fits = False
    else:
        fits = len(points) > 0 and len(centroids) > 0
    if not fits:
        raise DataError(
            f"points {tuple(points.shape)} and centroids {tuple(centroids.shape)}: give (n, d) and "
            "(k, d) with n, k ≥ 1."
        )
    if not fuzziness > 1 or iterations < 1:
        raise DataError(
            f"fuzziness={fuzziness:g}, iterations={iterations}: give more than 1 of the one and at "
            "least 1 of the other."
        )
    for name, values in (("points", points), ("centroids", centroids)):
        if not bool(torch.isfinite(values).all()):
            raise DataError(f"{name} are not finite: check what computed them.")
