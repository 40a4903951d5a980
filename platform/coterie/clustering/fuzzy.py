"""Fuzzy c-means: each sample belongs to every cluster, by its distance to the centroids.

Bezdek et al., "FCM: The fuzzy c-means clustering algorithm" (1984). Computed in float64.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from coterie.clustering.blocks import row_blocks
from coterie.errors import DataError


@dataclass(frozen=True, kw_only=True)
class FuzzyMeans:
    """Result of fuzzy c-means.

    Attributes:
        centroids: Σ_i u_ij^m x_i / Σ_i u_ij^m, in the points' dtype.
        memberships: Σ_i u_ij, the clusters' supports, for the same u.
        powers: Σ_i u_ij^m.
        largest: max_i u_ij^m, the most that one sample adds to these.
        objective: (1/n) Σ_ij u_ij^m ‖x_i − c_j‖², at the previous centroids, which gave these u.
    """

    centroids: Float[Tensor, "k d"]
    memberships: Float64[Tensor, "k"]
    powers: Float64[Tensor, "k"]
    largest: Float64[Tensor, "k"]
    objective: float


def memberships(
    points: Float[Tensor, "n d"], centroids: Float[Tensor, "k d"], fuzziness: float
) -> Float64[Tensor, "n k"]:
    """Return u_ij = 1 / Σ_l (‖x_i − c_j‖ / ‖x_i − c_l‖)^(2/(m−1)); 1 for a point on centroid j.

    Distances are computed from differences, so a row's bits do not depend on other rows.

    Args:
        points: x.
        centroids: c.
        fuzziness: m > 1; near 1 only the nearest centroid counts, for large m all count alike.

    Returns:
        Memberships; rows sum to 1.
    """
    exact = "donot_use_mm_for_euclid_dist"
    away = torch.cdist(points.double(), centroids.double(), compute_mode=exact)
    return _shares(away.square(), fuzziness)


def fuzzy_means(
    points: Float[Tensor, "n d"],
    centroids: Float[Tensor, "k d"],
    *,
    fuzziness: float,
    iterations: int,
) -> FuzzyMeans:
    """Iterate fuzzy c-means: c_j ← Σ_i u_ij^m x_i / Σ_i u_ij^m.

    A centroid whose memberships are all 0 in float64 stays where it is.

    Args:
        points: x, n ≥ 1.
        centroids: The initial centroids.
        fuzziness: m > 1.
        iterations: Number of iterations, at least 1.

    Raises:
        DataError: If a value is not finite.
    """
    for name, values in (("points", points), ("centroids", centroids)):
        if not bool(torch.isfinite(values).all()):
            raise DataError(f"{name} are not finite: check how they were computed.")
    centres = centroids.double()
    for _ in range(iterations):
        found = _pass(points, centres, fuzziness)
        centres = found.centroids
    return replace(found, centroids=centres.to(points.dtype))


def ratio_where_positive(
    sums: Float[Tensor, "k d"], weights: Float[Tensor, "k"], otherwise: Float[Tensor, "k d"]
) -> Float[Tensor, "k d"]:
    """Divide rows of weighted sums by their weights; rows of weight 0 get `otherwise`.

    A denormal weight counts as 0: it has lost most of its digits.
    """
    enough = (weights >= torch.finfo(weights.dtype).tiny)[:, None]
    return torch.where(enough, sums / torch.where(enough, weights[:, None], 1.0), otherwise)


def _pass(
    points: Float[Tensor, "n d"], centroids: Float64[Tensor, "k d"], fuzziness: float
) -> FuzzyMeans:
    """Return the result of one iteration, its centroids in float64."""
    members, powers, largest = centroids.new_zeros(3, len(centroids))
    sums, objective = torch.zeros_like(centroids), 0.0
    for (block,) in row_blocks(points):
        rows = block.double()
        products = rows @ centroids.T
        lengths = rows.square().sum(dim=1)[:, None] + centroids.square().sum(dim=1)
        squared = (lengths - 2 * products).clamp_min(0)
        u = _shares(squared, fuzziness)
        power = u.pow(fuzziness)
        members, powers = members + u.sum(dim=0), powers + power.sum(dim=0)
        largest = torch.maximum(largest, power.amax(dim=0))
        sums = sums + power.T @ rows
        objective += float((power * squared).sum())
    return FuzzyMeans(
        centroids=ratio_where_positive(sums, powers, centroids),
        memberships=members,
        powers=powers,
        largest=largest,
        objective=objective / len(points),
    )


def _shares(squared: Float64[Tensor, "n k"], fuzziness: float) -> Float64[Tensor, "n k"]:
    """Return memberships from squared distances, by logarithms: safe for 0 and for large powers."""
    logs = squared.clamp_min(torch.finfo(squared.dtype).tiny).log()
    return (-logs / (fuzziness - 1)).softmax(dim=1)
