"""The page's content: each cluster's pictures, pairs of clusters that touch, and halves.

Which samples belong to a cluster, and how surely, is what the run has written. The model looks at a
bounded number of samples again, for the probabilities of other clusters and the representations.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.clustering.contingency import OUTLIER
from coterie.clustering.kmeans import kmeans

Rows = NDArray[np.int64]
_BETWEEN = 8
"""Pictures of a pair of clusters, and of a half."""
_PAIRS = 12
_LEAST = 0.005
"""The least share of a cluster from which a pair is shown."""
_FEWEST = 20
"""The fewest sampled rows with which a cluster can be split."""


class HalfPlane(NamedTuple):
    """The plane that splits a cluster; half b has `direction · h > threshold`."""

    direction: list[float]
    threshold: float


@dataclass(frozen=True)
class Half:
    """One of the two halves of a cluster.

    Attributes:
        key: The part's name in a file of names, such as "3a".
        share: Of the cluster.
        rows: The samples nearest to its middle.
    """

    key: str
    share: float
    rows: Rows


@dataclass
class ClusterView:
    """A cluster, or the outliers.

    Attributes:
        key: Its number, as text; "-1" for outliers.
        sure: Their mean confidence.
        certain: The samples of the largest confidence.
        uncertain: Those of the smallest.
        halves: Both halves, if it can be split.
    """

    key: str
    size: int
    sure: float
    certain: Rows
    uncertain: Rows
    halves: list[Half] = field(default_factory=list)
    plane: HalfPlane | None = None


@dataclass(frozen=True)
class Touching:
    """A pair of clusters that touch.

    Attributes:
        first: Number of a cluster, as text.
        share: Of the samples of one of both, those that may belong to the other; the larger share.
        rows: The samples that were looked at and are most nearly between both.
    """

    first: str
    second: str
    share: float
    rows: Rows


@dataclass(frozen=True)
class Assigned:
    """The clusters that a run has written for its samples.

    Attributes:
        rows: The samples (n,), rows of the data set.
        clusters: The cluster of each.
        confidence: Its probability.
        number: Number of clusters k, of which some may have no sample.
        outliers: Whether samples may belong to none, and then have the cluster -1.
    """

    rows: Rows
    clusters: Rows
    confidence: NDArray[np.float32]
    number: int
    outliers: bool = False

    def members(self) -> Iterator[tuple[int, Rows]]:
        """Return the places of each cluster's samples, the most certain first; outliers last."""
        for cluster in (*range(self.number), *([OUTLIER] if self.outliers else ())):
            own = np.flatnonzero(self.clusters == cluster)
            yield cluster, own[np.argsort(-self.confidence[own], kind="stable")]


def views_of(assigned: Assigned, pictures: int) -> list[ClusterView]:
    """Return each cluster with its `pictures` most and least certain samples, none twice."""
    found = []
    for cluster, own in assigned.members():
        most, fewest = own[:pictures], own[max(pictures, len(own) - pictures) :][::-1]
        found.append(
            ClusterView(
                key=str(cluster),
                size=len(own),
                sure=float(assigned.confidence[own].mean()) if len(own) else 0.0,
                certain=assigned.rows[most],
                uncertain=assigned.rows[fewest],
            )
        )
    return found


def examined(assigned: Assigned, samples: int, seed: int) -> Rows:
    """Return the places of up to `samples` samples, equally many of each cluster, sorted."""
    generator = np.random.default_rng(seed)
    members = [own for _, own in assigned.members()]
    each = max(1, samples // max(1, sum(map(bool, map(len, members)))))
    return np.sort(np.concatenate([generator.permutation(own)[:each] for own in members]))


def pairs_of(assigned: Assigned, places: Rows, probabilities: Tensor) -> list[Touching]:
    """Return the pairs of clusters that touch most, without the outliers.

    `probabilities` are those of the samples at `places`, (m, k) or, with outliers, (m, k + 1).
    """
    places, probabilities = _inside(assigned, places, probabilities)
    own = assigned.clusters[places]
    found = probabilities[:, : assigned.number].double().numpy()
    pairs = []
    for a, b, share in _touching(own, found, np.ones(len(own))):
        near = np.flatnonzero((own == a) | (own == b))
        between = np.minimum(found[near, a], found[near, b])
        rows = assigned.rows[places[near[np.argsort(-between, kind="stable")[:_BETWEEN]]]]
        pairs.append(Touching(str(a), str(b), share, rows))
    return pairs


def _inside(assigned: Assigned, places: Rows, values: Tensor) -> tuple[Rows, Tensor]:
    """Drop the outliers among these places, with their values."""
    kept = assigned.clusters[places] != OUTLIER
    return places[kept], values[torch.from_numpy(kept)]


def _touching(
    own: Rows, others: NDArray[np.float64], masses: NDArray[np.float64]
) -> Iterator[tuple[int, int, float]]:
    """Return the pairs of clusters that touch most, and how much each pair touches.

    Args:
        own: Clusters (m,).
        others: How far each may belong to every cluster, (m, k).
        masses: Weights (m,) of the mean over a cluster.
    """
    sums = np.zeros((others.shape[1], others.shape[1]))
    np.add.at(sums, own, others * masses[:, None])
    sizes = np.bincount(own, weights=masses, minlength=len(sums))
    means = sums / np.maximum(sizes, 1e-12)[:, None]
    first, second = np.triu_indices(len(means), 1)
    both = np.maximum(means, means.T)[first, second] * (np.minimum(sizes[first], sizes[second]) > 0)
    for place in np.argsort(-both, kind="stable")[:_PAIRS]:
        if both[place] >= _LEAST:
            yield int(first[place]), int(second[place]), float(both[place])


def add_halves(
    views: Iterable[ClusterView], assigned: Assigned, places: Rows, embedding: Tensor, seed: int
) -> None:
    """Split each cluster by 2-means of the sampled representations; not the outliers.

    `embedding` has the representations (m, d) of the samples at `places`.
    """
    places, embedding = _inside(assigned, places, embedding)
    for view in views:
        near = np.flatnonzero(assigned.clusters[places] == int(view.key))
        points = embedding[torch.from_numpy(near)].float()
        if len(points) < _FEWEST or bool((points == points[0]).all()):
            continue
        found = kmeans(points, 2, seed=seed, restarts=3)
        first, second = found.centroids.double()
        # As they are read back, so that a half here is that half in a prediction.
        rounded = [float(f"{value:.7g}") for value in (second - first).tolist()]
        direction = torch.tensor(rounded, dtype=torch.float64)
        threshold = float((second.square().sum() - first.square().sum()) / 2)
        beyond = (points.double() @ direction > threshold).numpy()
        if beyond.all() or not beyond.any():
            continue
        view.plane = HalfPlane(rounded, threshold)
        away = (points - found.centroids[found.assignments]).square().sum(dim=1).numpy()
        for side, inside in (("a", ~beyond), ("b", beyond)):
            rows = near[inside][np.argsort(away[inside], kind="stable")[:_BETWEEN]]
            view.halves.append(
                Half(view.key + side, float(inside.mean()), assigned.rows[places[rows]])
            )


@dataclass(frozen=True)
class PrototypeMap:
    """The prototypes of node-local data, whose samples nobody may look at.

    Attributes:
        places: (m, 2) in [0, 1], the two leading principal components.
        radii: (m,), the roots of their shares of the samples, 1 for the largest.
        clusters: The cluster of each, (m,); -1 for outliers.
        sizes: Cluster to its number of samples and of prototypes.
        pairs: The pairs of clusters that touch, by their prototypes' nearest neighbours.
    """

    places: NDArray[np.float64]
    radii: NDArray[np.float64]
    clusters: Rows
    sizes: Mapping[str, tuple[int, int]]
    pairs: list[Touching]


def prototype_map(points: Tensor, counts: Tensor, clusters: Tensor, number: int) -> PrototypeMap:
    """Return where prototypes lie, and which clusters touch by them.

    Args:
        points: (m, d).
        counts: Samples that each stands for, (m,).
        clusters: The cluster of each, (m,); -1 for outliers.
        number: Number of clusters.
    """
    values, masses, own = points.double().numpy(), counts.double().numpy(), clusters.numpy()
    centred = values - np.average(values, axis=0, weights=masses)
    _, _, axes = np.linalg.svd(centred * np.sqrt(masses)[:, None], full_matrices=False)
    plane = np.zeros((len(values), 2))
    plane[:, : min(2, len(axes))] = centred @ axes[:2].T
    low, wide = plane.min(axis=0), max(np.ptp(plane, axis=0).max(), 1e-12)
    near = torch.cdist(points.double(), points.double()).fill_diagonal_(torch.inf).argmin(dim=1)
    inside, beside = own >= 0, np.eye(number + 1)[own[near.numpy()], :number]
    found = _touching(own[inside], beside[inside], masses[inside])
    sizes = np.bincount(own[inside], weights=masses[inside], minlength=number)
    none, many = np.empty(0, np.int64), np.bincount(own[inside], minlength=number)
    outside = {str(OUTLIER): (round(masses[~inside].sum()), int((~inside).sum()))}
    return PrototypeMap(
        places=(plane - low) / wide,
        radii=np.sqrt(masses / masses.max()),
        clusters=own,
        sizes={str(k): (round(sizes[k]), int(many[k])) for k in range(number)}
        | ({} if inside.all() else outside),
        # A single prototype has none but others as neighbours.
        pairs=[Touching(str(a), str(b), share, none) for a, b, share in found if many.max() > 1],
    )
