"""Chooses the points that a device sends: by importance, at random, or by its centroids."""

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from coterie.clustering.kmeans import kmeans
from coterie.peers.clusters import squared_distances


def draw(
    probabilities: Float64[Tensor, "n"], count: int, generator: torch.Generator
) -> Int64[Tensor, "drawn"]:
    """Draw up to `count` points of positive probability, without replacement.

    A denormal probability counts as 0. Without this limit `torch.multinomial` would silently return
    points of probability 0.

    Args:
        probabilities: Each point's probability, on the CPU.
        count: Maximum number of points.
        generator: Source of randomness.

    Returns:
        Distinct positions.
    """
    possible = probabilities >= torch.finfo(probabilities.dtype).tiny
    number = min(count, int(possible.sum()))
    if number == 0:
        return torch.zeros(0, dtype=torch.int64)
    weights = torch.where(possible, probabilities, 0.0)
    return torch.multinomial(weights, number, replacement=False, generator=generator)


def draw_uniformly(size: int, count: int, generator: torch.Generator) -> Int64[Tensor, "drawn"]:
    """Draw up to `count` distinct positions below `size`, all equally likely."""
    return torch.randperm(size, generator=generator)[:count]


def nearest_to_centroids(
    points: Float[Tensor, "n d"], count: int, *, seed: int, restarts: int
) -> Int64[Tensor, "chosen"]:
    """Cluster the points into `count` clusters, and choose the point nearest to each centroid.

    The centroids choose in turn, each the nearest point that is not chosen yet.

    Args:
        points: Vectors.
        count: Maximum number of points.
        seed: Seed of k-means.
        restarts: Number of k-means restarts.

    Returns:
        min(n, count) distinct positions.
    """
    count = min(count, len(points))
    if count == 0:
        return torch.zeros(0, dtype=torch.int64)
    centroids = kmeans(points, count, seed=seed, restarts=restarts).centroids
    distances = squared_distances(points, centroids)
    chosen = []
    for column in range(count):
        nearest = int(distances[:, column].argmin())
        distances[nearest] = torch.inf
        chosen.append(nearest)
    return torch.tensor(chosen)
