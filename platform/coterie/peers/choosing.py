"""Which points a device sends: drawn by importance, at random, or nearest to its centroids."""

import torch
from torch import Tensor

from coterie.clustering.kmeans import kmeans
from coterie.peers.clusters import squared_distances


def draw(probabilities: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draw points without replacement, at most as many as have a positive probability.

    Beyond these `torch.multinomial` would return others without a word, and before those whose
    probability is denormal, which counts as 0 here.

    Args:
        probabilities: float64 (n,), on the CPU.
        count: How many at most.
        generator: What draws.

    Returns:
        Different positions, int64 (at most count,).
    """
    possible = probabilities >= torch.finfo(probabilities.dtype).tiny
    number = min(count, int(possible.sum()))
    if number == 0:
        return torch.zeros(0, dtype=torch.int64)
    weights = torch.where(possible, probabilities, 0.0)
    return torch.multinomial(weights, number, replacement=False, generator=generator)


def draw_uniformly(size: int, count: int, generator: torch.Generator) -> Tensor:
    """Different positions below `size`, all equally likely: int64 (at most count,)."""
    return torch.randperm(size, generator=generator)[:count]


def nearest_to_centroids(points: Tensor, count: int, *, seed: int, restarts: int) -> Tensor:
    """The points nearest to the centroids of as many clusters, each point once.

    The centroids choose in turn, each the nearest point that is left.

    Args:
        points: Vectors (n, d).
        count: How many at most.
        seed: Of k-means' starts.
        restarts: k-means' starts, of which the best is taken.

    Returns:
        Different positions, int64 (min(n, count),).
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
