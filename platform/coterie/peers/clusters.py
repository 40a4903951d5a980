"""Sizes, centroids and radii of clusters that are given as labels of points, in float64."""

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor


def sizes(labels: Int64[Tensor, "n"], count: int) -> Float64[Tensor, "{count}"]:
    """Return the number of points in each cluster."""
    return labels.bincount(minlength=count).double()


def means(
    values: Float[Tensor, "n *rest"], labels: Int64[Tensor, "n"], count: int
) -> Float64[Tensor, "{count} *rest"]:
    """Return each cluster's mean; 0 if it is empty."""
    total = torch.zeros(count, *values.shape[1:], dtype=torch.float64, device=values.device)
    total.index_add_(0, labels, values.double())
    members = sizes(labels, count).clamp_min(1)
    return total / members.reshape(-1, *[1] * (values.ndim - 1))


def maxima(
    values: Float[Tensor, "n"], labels: Int64[Tensor, "n"], count: int
) -> Float64[Tensor, "{count}"]:
    """Return each cluster's largest value; −∞ if it is empty."""
    start = torch.full((count,), -torch.inf, dtype=torch.float64, device=values.device)
    return start.scatter_reduce(0, labels, values.double(), "amax")


def squared_distances(a: Float[Tensor, "n d"], b: Float[Tensor, "m d"]) -> Float64[Tensor, "n m"]:
    """Return ‖a_i − b_j‖² from differences, without cancellation: equal rows are at distance 0."""
    return torch.stack([(a.double() - row).square().sum(dim=1) for row in b.double()], dim=1)


def squared_radii(
    points: Float[Tensor, "n d"], labels: Int64[Tensor, "n"], count: int
) -> Float64[Tensor, "{count}"]:
    """Return each cluster's largest squared distance of a member to its centroid."""
    centroids = means(points, labels, count)
    return maxima((points.double() - centroids[labels]).square().sum(dim=1), labels, count)


def mean_squared_radius(points: Float[Tensor, "n d"], labels: Int64[Tensor, "n"]) -> float:
    """Return the mean squared radius of non-empty clusters, on which CF-CL's margin is based.

    Wagle et al. (CF-CL), eq. (24); squared because it is compared with squared distances.

    Args:
        points: Embeddings, n ≥ 1.
        labels: Each point's cluster.
    """
    radii = squared_radii(points, labels, int(labels.max()) + 1)
    return float(radii[radii >= 0].mean())


def relative_distances(
    points: Float[Tensor, "n d"], own: Float[Tensor, "m d"], centroids: Float[Tensor, "k d"]
) -> Float[Tensor, "n"]:
    """Return how far points lie from centroids, relative to the points that formed these.

    Wagle et al. (CF-CL), figure 7, has the distances themselves, whose unit changes as the network
    learns.

    Args:
        points: Embeddings, n ≥ 1.
        own: The embeddings whose centroids these are, m ≥ 1.
        centroids: Of `own`.

    Returns:
        The distance of each of `points` to the nearest centroid, over the mean one of `own`; NaN if
        the latter is 0.
    """
    far, near = (_distances(rows, centroids) for rows in (points, own))
    return far / near.mean() if near.any() else torch.full_like(far, torch.nan)


def _distances(points: Tensor, centroids: Tensor) -> Tensor:
    return squared_distances(points, centroids).min(dim=1).values.sqrt()
