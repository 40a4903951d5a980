"""Clusters as labels of points: their sizes, centroids and radii."""

import torch
from torch import Tensor


def sizes(labels: Tensor, count: int) -> Tensor:
    """How many points each cluster has: float64 (count,), of labels int64 (n,)."""
    return labels.bincount(minlength=count).double()


def means(values: Tensor, labels: Tensor, count: int) -> Tensor:
    """Each cluster's mean of values (n,) or (n, d): float64 (count,) or (count, d); 0 if empty."""
    total = torch.zeros(count, *values.shape[1:], dtype=torch.float64, device=values.device)
    total.index_add_(0, labels, values.double())
    members = sizes(labels, count).clamp_min(1)
    return total / members.reshape(-1, *[1] * (values.ndim - 1))


def maxima(values: Tensor, labels: Tensor, count: int) -> Tensor:
    """Each cluster's largest of values (n,): float64 (count,); −∞ if empty."""
    start = torch.full((count,), -torch.inf, dtype=torch.float64, device=values.device)
    return start.scatter_reduce(0, labels, values.double(), "amax")


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """‖a_i − b_j‖² of rows a (n, d) and b (m, d), from the differences themselves: float64 (n, m).

    No cancellation, so that equal rows are at distance 0.
    """
    return torch.stack([(a.double() - row).square().sum(dim=1) for row in b.double()], dim=1)


def squared_radii(points: Tensor, labels: Tensor, count: int) -> Tensor:
    """Each cluster's largest squared distance of a member to the centroid: float64 (count,)."""
    centroids = means(points, labels, count)
    return maxima((points.double() - centroids[labels]).square().sum(dim=1), labels, count)


def mean_squared_radius(points: Tensor, labels: Tensor) -> float:
    """The mean over the clusters that have points: CF-CL's margin is a multiple of it.

    Wagle et al. (CF-CL), eq. (24); the radius is squared because it is compared with squared
    distances.

    Args:
        points: Embeddings (n, d), one at least.
        labels: Each point's cluster, int64 (n,).
    """
    radii = squared_radii(points, labels, int(labels.max()) + 1)
    return float(radii[radii >= 0].mean())
