"""k-FED: k-means on each client after a projection, and on the server from chosen seeds.

Dennis et al., "Heterogeneity for the Win: One-Shot Federated Clustering" (2021), algorithms 1 and
2; the first is of Awasthi and Sheffet, "Improved Spectral-Norm Bounds for Clustering" (2012).
"""

import torch
from jaxtyping import Float
from torch import Tensor

from coterie.clustering.kmeans import KMeansResult, kmeans
from coterie.errors import DataError

_RATIO = 1 / 3
"""A point is trusted if its nearest centroid is at most this far, relative to the second
nearest."""


def projected_kmeans(
    points: Float[Tensor, "n d"], k: int, *, seed: int, restarts: int
) -> KMeansResult:
    """Run k-means on the points' projections, then Lloyd's algorithm on the points.

    Lloyd's algorithm starts from the means of the points that clearly belong to one cluster of the
    projections. Projections are onto the first k right singular vectors, which preserves distances
    between clusters and removes noise.

    Args:
        points: n ≥ k points.
        k: Number of clusters.
        seed: Seed of k-means on the projections.
        restarts: Its number of independent starts.

    Raises:
        DataError: As `kmeans`.
    """
    seen = projected(points, k)
    starts = kmeans(seen, k, seed=seed, restarts=restarts).centroids
    return kmeans(points, k, seed=seed, init=trusted_means(points, seen, starts))


def projected(points: Float[Tensor, "n d"], rank: int) -> Float[Tensor, "n r"]:
    """Return coordinates along the first right singular vectors, r = min(rank, n, d).

    The points are not centred. Computed in float64 from the eigenvectors of the Gram matrix, n × n
    or d × d, whichever is smaller.
    """
    wide = points.double()
    if len(wide) < wide.shape[1]:
        values, vectors = torch.linalg.eigh(wide @ wide.T)
        coordinates: Tensor = vectors[:, -rank:] * values[-rank:].clamp_min(0).sqrt()
    else:
        _, vectors = torch.linalg.eigh(wide.T @ wide)
        coordinates = wide @ vectors[:, -rank:]
    return coordinates.to(points.dtype)


def trusted_means(
    points: Float[Tensor, "n d"], seen: Float[Tensor, "n r"], starts: Float[Tensor, "k r"]
) -> Float[Tensor, "k d"]:
    """Return means of points whose projection is three times nearer to one centroid than to others.

    A cluster without such points gets the mean of the points nearest to its centroid, or, without
    these too, the mean of all points.

    Args:
        points: The points.
        seen: Their projections.
        starts: Centroids of the projections.
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


def farthest_first(centroids: Float[Tensor, "n d"], k: int, first: int) -> Float[Tensor, "k d"]:
    """Return seeds: the first rows, then repeatedly the row farthest from all seeds so far.

    Args:
        centroids: All clients' centroids, n ≥ k.
        k: Number of seeds.
        first: Number of first rows to start with, those of one client.

    Raises:
        DataError: If there are fewer than k.
    """
    if len(centroids) < k:
        raise DataError(f"k={k}: seeds are chosen from only {len(centroids)} centroids; lower k.")
    chosen = list(range(min(first, k)))
    wide = centroids.double()
    away = torch.stack([(wide - wide[i]).square().sum(dim=1) for i in chosen]).amin(dim=0)
    while len(chosen) < k:
        chosen.append(int(away.argmax()))
        away = torch.minimum(away, (wide - wide[chosen[-1]]).square().sum(dim=1))
    return centroids[chosen]
