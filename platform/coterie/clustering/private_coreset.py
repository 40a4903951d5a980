"""Clusters with local differential privacy: a coreset from noisy counts and sums of a client.

Chang, Ghazi, Kumar and Manurangsi, "Locally Private k-Means in One Round" (ICML 2021), in the
simpler form of Chang and Kamath, "Practical Differentially Private Clustering" (2021): random
hyperplanes part unit vectors, level by level, into a binary tree. A node whose noisy number of rows
is large is parted further; a leaf sends the direction of its noisy sum. Clusters are k-means of the
leaves.

One row is in one node of each level and in one leaf. So it changes each level's counts by 1 in
norm, and the leaves' sums by 1: with noise σ_i all queries together are a Gaussian mechanism with
1/σ² = Σ 1/σ_i².
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int32, Int64
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from coterie.clustering.kmeans import kmeans
from coterie.clustering.lattice import UNIT, clipped_rows

Noisy = Callable[[NDArray[np.int64], int, str], NDArray[np.int64]]
"""Adds noise of a given standard deviation to integers; the text names them."""

_SUMS = 4 / 5
"""Share of 1/σ² for the leaves' sums; the levels' counts have the rest."""
_COUNT_STEPS = 2**10
"""Counts are multiples of this, so that their noise is fine."""
_DEEPER = 2
"""Levels beyond those that give as many leaves as clusters."""


def private_clusters(
    rows: Float[Tensor, "n d"],
    clusters: int,
    *,
    noise_multiplier: float,
    fewest: int,
    seed: int,
    noisy: Noisy,
) -> Float64[Tensor, "k d"]:
    """Cluster rows such that the result is differentially private for each row.

    Args:
        rows: Unit vectors; longer ones are scaled to length 1.
        clusters: Most clusters to make.
        noise_multiplier: σ of the Gaussian mechanism that all queries together are.
        fewest: Rows that a leaf has at least, by its noisy count.
        seed: Seed of the hyperplanes and of k-means; public.
        noisy: Adds noise.

    Returns:
        Unit vectors, one a cluster, up to `clusters`; none if there are fewer rows than `fewest`.
    """
    points = clipped_rows(rows, 1.0)
    if len(points) < fewest:
        return torch.zeros(0, points.shape[1], dtype=torch.float64)
    levels = max(1, math.ceil(math.log2(clusters))) + _DEEPER
    sigmas = noise_of(levels, noise_multiplier)
    sides = halfspaces(points, levels, seed)
    leaves, counts = _leaves(sides, clusters, fewest, sigmas[0], noisy)
    sums = np.zeros((len(counts), points.shape[1]), dtype=np.int64)
    inside = leaves >= 0
    np.add.at(sums, leaves[inside], points.numpy()[inside])
    sigma = math.ceil(sigmas[1] * UNIT)
    found = torch.from_numpy(noisy(sums.ravel(), sigma, "leaves").reshape(sums.shape)).double()
    centres = normalize(found, dim=1)
    if len(centres) <= clusters:
        return centres
    result = kmeans(centres, clusters, seed=seed, weights=counts, spherical=True)
    return normalize(result.centroids.double(), dim=1)


def noise_of(levels: int, noise_multiplier: float) -> tuple[float, float]:
    """Return the noise of each level's counts and of the leaves' sums, in units of one row."""
    counts = noise_multiplier * math.sqrt(levels / (1 - _SUMS))
    return counts, noise_multiplier / math.sqrt(_SUMS)


def halfspaces(
    points: Int32[Tensor, "n d"], levels: int, seed: int
) -> Bool[np.ndarray, "n levels"]:
    """Return the side of random hyperplanes through the origin on which each point lies; exact."""
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(points.shape[1], levels))
    return np.asarray(points.numpy().astype(np.float64) @ signs >= 0)


def _leaves(
    sides: Bool[np.ndarray, "n levels"], clusters: int, fewest: int, sigma: float, noisy: Noisy
) -> tuple[Int64[np.ndarray, "n"], Float64[np.ndarray, "leaves"]]:
    """Return each row's leaf, −1 if it has none, and the leaves' noisy numbers of rows.

    A node is parted while it has twice a cluster's share of the rows, and dropped with less than
    half of it. If nothing is left, all rows are one leaf.
    """
    share = len(sides) / clusters
    node = np.zeros(len(sides), dtype=np.int64)  # among nodes to be split; −1 for none
    leaf, counts, parted = np.full(len(sides), -1), list[float](), 1
    for level in range(sides.shape[1]):
        child = np.where(node >= 0, 2 * node + sides[:, level], -1)
        exact = np.bincount(child[child >= 0], minlength=2 * parted).astype(np.int64)
        scaled = noisy(exact * _COUNT_STEPS, math.ceil(sigma * _COUNT_STEPS), f"level {level}")
        found = scaled / _COUNT_STEPS
        further = (found >= 2 * share) & (level + 1 < sides.shape[1])
        stays = ~further & (found >= max(share / 2, fewest))
        names = np.full(2 * parted, -1)
        names[stays] = len(counts) + np.arange(stays.sum())
        counts += found[stays].tolist()
        parts = np.full(2 * parted, -1)
        parts[further] = np.arange(further.sum())
        inside = np.flatnonzero(child >= 0)
        leaf[inside] = np.maximum(leaf[inside], names[child[inside]])
        node = np.where(child >= 0, parts[np.maximum(child, 0)], -1)
        parted = int(further.sum())
        if not parted:
            break
    if not counts:
        return np.zeros(len(sides), dtype=np.int64), np.array([float(len(sides))])
    return leaf, np.array(counts)
