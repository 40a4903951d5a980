"""k-FED's two halves: k-means on a client after a projection, and seeds for k-means on the server.

Dennis et al., "Heterogeneity for the Win: One-Shot Federated Clustering" (2021), algorithms 1 and
2; the first is of Awasthi and Sheffet, "Improved Spectral-Norm Bounds for Clustering" (2012).
"""

import torch
from torch import Tensor

from coterie.clustering.kmeans import KMeansResult, kmeans
from coterie.errors import DataError

_RATIO = 1 / 3
"""A point tells of a cluster if its centroid is at most this as far as any other."""


def projected_kmeans(points: Tensor, k: int, *, seed: int, restarts: int) -> KMeansResult:
    """k-means among projections, then Lloyd's algorithm on the points themselves.

    It starts there from the means of those points that are clearly of one cluster among the
    projections. With k clusters the projections are onto the first k right singular vectors, which
    holds distances between clusters and takes noise away.

    Args:
        points: (n, d), n ≥ k.
        k: The number of clusters.
        seed: Of k-means among the projections.
        restarts: Its independent starts.

    Raises:
        DataError: As `kmeans`.
    """
    seen = projected(points, k)
    starts = kmeans(seen, k, seed=seed, restarts=restarts).centroids
    return kmeans(points, k, seed=seed, init=trusted_means(points, seen, starts))


def projected(points: Tensor, rank: int) -> Tensor:
    """Coordinates (n, min(rank, d)) along the points' first right singular vectors.

    The points are not centred. From the eigenvectors of their Gram matrix, n×n or d×d, whichever is
    smaller, in float64; of n < d points there are min(rank, n) coordinates.
    """
    wide = points.double()
    if len(wide) < wide.shape[1]:
        values, vectors = torch.linalg.eigh(wide @ wide.T)
        coordinates: Tensor = vectors[:, -rank:] * values[-rank:].clamp_min(0).sqrt()
    else:
        _, vectors = torch.linalg.eigh(wide.T @ wide)
        coordinates = wide @ vectors[:, -rank:]
    return coordinates.to(points.dtype)


def trusted_means(points: Tensor, seen: Tensor, starts: Tensor) -> Tensor:
    """Means of the points whose projection is three times nearer to one centroid than to others.

    Where a cluster has no such point it is the mean of all that are nearest to its centroid, and
    where it has none of these either, of all points.

    Args:
        points: (n, d).
        seen: Their projections (n, r).
        starts: Centroids among the projections (k, r).

    Returns:
        (k, d).
    """
    exact = "donot_use_mm_for_euclid_dist"
    away = torch.cdist(seen.double(), starts.double(), compute_mode=exact)
    near, nearest = away.min(dim=1)
    second = away.scatter(1, nearest[:, None], torch.inf).min(dim=1).values
    sure = near <= _RATIO * second
    means = []
    everyone = torch.ones_like(sure)
    for cluster in range(len(starts)):
        own = nearest == cluster
        chosen = next((rows for rows in (own & sure, own) if bool(rows.any())), everyone)
        means.append(points[chosen].mean(dim=0))
    return torch.stack(means)


def farthest_first(centroids: Tensor, k: int, first: int) -> Tensor:
    """Seeds: some to begin with, then again and again what is farthest from all so far.

    Args:
        centroids: All clients' centroids (n, d), n ≥ k.
        k: How many seeds.
        first: How many of the first rows to begin with, those of one client.

    Returns:
        (k, d).

    Raises:
        DataError: If there are fewer than k.
    """
    if len(centroids) < k:
        raise DataError(f"k={k} seeds of {len(centroids)} centroids: lower k.")
    chosen = list(range(min(first, k)))
    wide = centroids.double()
    away = torch.stack([(wide - wide[i]).square().sum(dim=1) for i in chosen]).amin(dim=0)
    while len(chosen) < k:
        chosen.append(int(away.argmax()))
        away = torch.minimum(away, (wide - wide[chosen[-1]]).square().sum(dim=1))
    return centroids[chosen]
