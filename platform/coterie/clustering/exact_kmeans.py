"""Steps of k-means from exact sums over all samples, however these are split over clients.

Starting points are drawn from the moments of all samples, never from a sample; clusters without
points, and new clusters, come from splitting the one of largest inertia. So centroids are means of
many samples at every step, and the same whatever the split over clients.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float64, Int, Int64
from numpy.typing import NDArray
from torch import Tensor

from coterie.clustering.lattice import LIMIT, off_lattice, on_lattice
from coterie.errors import DataError


@dataclass(frozen=True)
class Moments:
    """First and second moments of all samples."""

    count: int
    mean: Float64[Tensor, "d"]
    covariance: Float64[Tensor, "d d"] | Float64[Tensor, "d"]

    @classmethod
    def of(
        cls, count: Tensor, total: Float64[Tensor, "d"], products: Float64[Tensor, "..."]
    ) -> "Moments":
        """Return the moments, given n, Σ x, and Σ x xᵀ or its diagonal.

        Raises:
            DataError: If there are no samples.
        """
        if not int(count):
            raise DataError("No client sent a sample; see why they failed.")
        mean = total / count
        centre = mean * mean if products.ndim == 1 else torch.outer(mean, mean)
        return cls(int(count), mean, products / count - centre)

    @cached_property
    def _spectrum(self) -> tuple[Float64[Tensor, "d"], Float64[Tensor, "d d"]]:
        """The covariance matrix's eigenvalues and eigenvectors, shared by several starts."""
        values, vectors = torch.linalg.eigh(self.covariance)
        return values, vectors

    def draws(self, number: int, generator: np.random.Generator) -> Int[Tensor, "number d"]:
        """Draw points from the normal distribution with these moments, on the lattice."""
        noise = torch.from_numpy(generator.standard_normal((number, len(self.mean))))
        if self.covariance.ndim == 1:
            spread = noise * self.covariance.clamp_min(0).sqrt()
        else:
            values, vectors = self._spectrum
            spread = (noise * values.clamp_min(0).sqrt()) @ vectors.T
        return on_lattice((self.mean + spread).clamp(-LIMIT, LIMIT))


@dataclass(frozen=True)
class ClusterSums:
    """Σ x, Σ ‖x‖² and number of points of each cluster, over all clients; see `cluster_sums`."""

    columns: Float64[Tensor, "k columns"]

    @property
    def totals(self) -> Float64[Tensor, "k d"]:
        """Σ x of each cluster."""
        return self.columns[:, :-2]

    @property
    def counts(self) -> Float64[Tensor, "k"]:
        """The number of points in each cluster."""
        return self.columns[:, -1]

    @property
    def means(self) -> Float64[Tensor, "k d"]:
        """Each cluster's mean; zero for an empty cluster."""
        return self.totals / self.counts.clamp_min(1)[:, None]

    @property
    def scatter(self) -> Float64[Tensor, "k"]:
        """Σ ‖x − mean‖² of each cluster."""
        within = self.columns[:, -2] - (self.totals * self.means).sum(dim=1)
        return within.clamp_min(0)

    def inertia(self, centroids: Int[Tensor, "k d"]) -> float:
        """Return Σ ‖x − c‖² over all points x, each with its assigned centroid c."""
        values = off_lattice(centroids)
        cross = (values * self.totals).sum()
        return float(
            self.columns[:, -2].sum() - 2 * cross + (self.counts * values.square().sum(1)).sum()
        )


def moved(sums: ClusterSums, generator: np.random.Generator) -> Int[Tensor, "k d"]:
    """Return the next centroids; an empty cluster takes half of the one with the largest inertia.

    If none is left to split, it takes a copy of the largest cluster's mean.
    """
    empty = torch.nonzero(sums.counts == 0)[:, 0]
    centroids = sums.means.clone()
    if len(empty):
        centroids[empty] = sums.means[sums.counts.argmax()]
        _split(centroids, sums, empty, generator, fewest=2)
    return on_lattice(centroids)


def grown(
    sums: ClusterSums, clusters: int, fewest: int, generator: np.random.Generator
) -> Int[Tensor, "k2 d"]:
    """Return more centroids: clusters are split in the order of their inertia.

    Args:
        sums: The clusters so far.
        clusters: Number of centroids wanted, at most twice as many.
        fewest: Only clusters of at least this many points are split, so there may be fewer.
        generator: Directions of the splits.
    """
    centroids = torch.cat([sums.means, sums.means.new_zeros(clusters, sums.means.shape[1])])
    empty = torch.nonzero(sums.counts == 0)[:, 0]
    new = torch.cat([empty, torch.arange(len(sums.means), clusters)])
    filled = _split(centroids, sums, new, generator, fewest)
    kept = torch.cat([torch.nonzero(sums.counts > 0)[:, 0], filled])
    return on_lattice(centroids[kept])


def _split(
    centroids: Float64[Tensor, "m d"],
    sums: ClusterSums,
    places: Int64[Tensor, "p"],
    generator: np.random.Generator,
    fewest: int,
) -> Int64[Tensor, "filled"]:
    """Split clusters in place: one half stays, the other takes a free row.

    The halves lie on opposite sides of the mean, in a random direction, half a standard deviation
    per coordinate away. Returns the places that were filled.
    """
    order = _by_scatter(sums, fewest)[: len(places)]
    to = places[: len(order)]
    size = sums.means.shape[1]
    deviation = (sums.scatter[order] / sums.counts[order] / size).sqrt()[:, None]
    step = torch.from_numpy(generator.standard_normal((len(order), size))) * deviation / 2
    centroids[to] = sums.means[order] + step
    centroids[order] = sums.means[order] - step
    return to


def _by_scatter(sums: ClusterSums, fewest: int) -> Int64[Tensor, "m"]:
    """Return the clusters of at least `fewest` points, those of largest inertia first."""
    able: NDArray[np.int64] = np.flatnonzero(sums.counts.numpy() >= fewest)
    return torch.from_numpy(able[np.argsort(-sums.scatter.numpy()[able], kind="stable")])
