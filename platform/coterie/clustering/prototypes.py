"""Clusters of prototypes: their neighbour graph is cut, and samples follow near prototypes."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int32, Int64
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.nn.functional import one_hot

from coterie.clustering.graph import cut, eigengap, fuzzy_graph, spectrum
from coterie.clustering.lattice import off_lattice, on_lattice
from coterie.errors import ConfigError, RunError

_LEAST = 3
"""The fewest prototypes of a graph."""
_SPECTRUM = 31
"""Number of eigenvalues that are kept; `eigengap` compares all but the first."""
_STARTS = 50
_SAME = 1e-9
"""Relative difference of inertia below which two starts have ended at the same clusters."""
_COLDEST = 1e-6
"""Least temperature, for prototypes of equal samples: then each takes only its own."""
_SHARPNESS = 0.1
"""Temperature of the prototypes' votes, as a share of the mean squared distance to a prototype."""


def check_enough(most: int, samples: int, clusters: int | None) -> None:
    """Refuse, before the run, samples that give too few prototypes to cluster.

    Args:
        most: Prototypes that there can be, at most.
        samples: Samples of all clients.
        clusters: Number of clusters; None for one that is found.

    Raises:
        ConfigError: If there are too few.
    """
    needed = max(_LEAST, clusters or 0)
    if most < needed:
        raise ConfigError(
            f"method.minimum: {samples} samples make at most {most} prototypes, but clusters need "
            f"{needed}; lower it, add samples, or take method=kmeans."
        )


@dataclass(frozen=True)
class PrototypeClusters:
    """Prototypes with their clusters.

    Attributes:
        tensors: The arguments of `networks.prototypes.Prototypes`.
        eigenvalues: The graph's largest, descending from 1.
    """

    tensors: Mapping[str, Tensor]
    eigenvalues: list[float]


def grouped_by_means(
    points: Int32[Tensor, "m c"],
    counts: Float64[Tensor, "m"],
    clusters: int,
    *,
    seed: int,
    most: int = 1,
) -> Int64[Tensor, "s m"]:
    """Return each prototype's cluster by k-means, with prototypes weighted by their samples.

    Arthur and Vassilvitskii's k-means++ (2007), from `_STARTS` starts.

    Args:
        points: Prototypes, on the lattice.
        counts: Samples that each stands for.
        clusters: Number of clusters k.
        seed: Seed of the starts.
        most: How many of the starts' different ends to return, those of least inertia first.
    """
    from sklearn.cluster import KMeans  # a slow import, needed by the server only

    x, weights, found = off_lattice(points).numpy(), counts.numpy(), []
    with threadpool_limits(1):
        for start in range(_STARTS):
            model = KMeans(clusters, n_init=1, random_state=(seed + start) % 2**32)
            model.fit(x, sample_weight=weights)
            found.append((float(model.inertia_), model.labels_))
    found.sort(key=lambda end: end[0])
    ends = [found[0]]
    for end in found[1:]:
        if end[0] > ends[-1][0] * (1 + _SAME):
            ends.append(end)
    return torch.stack([torch.from_numpy(labels).long() for _, labels in ends[:most]])


def sizes(
    points: Float[Tensor, "n d"], centroids: Float[Tensor, "m d"], assignments: Int64[Tensor, "n"]
) -> tuple[Float64[Tensor, "m"], Float64[Tensor, "m"]]:
    """Return each centroid's number of samples, and their Σ ‖x − centroid‖²."""
    many = len(centroids)
    away = (points - centroids[assignments]).double().square().sum(dim=1)
    scatter = torch.zeros(many, dtype=torch.float64).index_add_(0, assignments, away)
    return assignments.bincount(minlength=many).double(), scatter


def cluster_prototypes(
    points: Int32[Tensor, "m c"],
    counts: Float64[Tensor, "m"],
    scatter: Float64[Tensor, "m"],
    *,
    clusters: int | None,
    neighbours: int,
    seed: int,
) -> PrototypeClusters:
    """Cut UMAP's graph over prototypes into clusters.

    Args:
        points: Prototypes, on the lattice.
        counts: Samples that each stands for.
        scatter: Σ ‖x − p‖² over these samples.
        clusters: Number of clusters; None for the number after which the graph's eigenvalues fall
            most.
        neighbours: Neighbours of a prototype in the graph; all others where there are no more.
        seed: Seed of the cut.

    Raises:
        RunError: If there are too few prototypes.
    """
    if len(points) < max(_LEAST, clusters or 0):
        raise RunError(
            f"Only {len(points)} prototypes have method.minimum samples or more, too few to "
            "cluster; lower method.minimum, or privacy.k_anonymity if that is larger."
        )
    graph = fuzzy_graph(off_lattice(points).numpy(), min(neighbours, len(points) - 1))
    found = spectrum(graph, max(_SPECTRUM, clusters or 0))
    number = clusters or eigengap(found)
    members = torch.from_numpy(cut(found, number, seed))
    tensors = {
        "points": points,
        "counts": counts,
        "members": one_hot(members, number).double(),
        "temperature": temperature(scatter, counts),
    }
    return PrototypeClusters(tensors, [float(value) for value in found.values[:_SPECTRUM]])


def temperature(scatter: Float64[Tensor, "m"], counts: Float64[Tensor, "m"]) -> Float64[Tensor, ""]:
    """Return the temperature of the prototypes' votes from their scatter and counts."""
    return (_SHARPNESS * scatter.sum() / counts.sum()).clamp_min(_COLDEST)


def evenness(found: PrototypeClusters) -> float:
    """Return the entropy of the clusters' shares of the samples, at most log k."""
    counts = found.tensors["counts"] @ found.tensors["members"]
    return float(torch.special.entr(counts / counts.sum()).sum())


def margin(
    values: Float64[Tensor, "m k"], members: Float64[Tensor, "m k"], counts: Float64[Tensor, "m"]
) -> float:
    """Return a classifier's mean difference between its largest and second largest value.

    The mean is taken within each cluster first, so that clusters count alike.

    Args:
        values: The classifier's, of prototypes.
        members: The cluster of each prototype, one-hot.
        counts: Samples that each stands for.
    """
    first, second = values.topk(2, dim=1).values.unbind(dim=1)
    apart = off_lattice(on_lattice(first - second))  # sums of it are exact
    masses = members * counts[:, None]
    filled = masses.sum(dim=0) > 0
    means = apart @ masses[:, filled] / masses[:, filled].sum(dim=0)
    return float(means.mean())
