"""Assigns samples to clusters, by the model's head or one fitted to its representations."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from coterie.clustering.kmeans import kmeans
from coterie.clustering.lattice import on_lattice
from coterie.clustering.prototypes import cluster_prototypes, sizes
from coterie.config.schema import Clustering
from coterie.contract.clusterer import Prediction, most_probable
from coterie.networks.heads import Centroids
from coterie.networks.prototypes import UnitPrototypes

_ROWS = 16384
"""Rows per block."""
_PROTOTYPES, _FEWEST, _NEIGHBOURS = 2000, 12, 15
"""Prototypes, the fewest samples for each, and their neighbours in the graph."""


def assign_clusters(
    prediction: Prediction,
    clusters: int,
    seed: int,
    clustering: Clustering = "kmeans",
    *,
    outliers: bool = False,
) -> tuple[NDArray[np.int64], NDArray[np.float32], nn.Module | None]:
    """Assign each sample to its most probable cluster; a model without a head is given one.

    Args:
        prediction: Embeddings and, if the model has a head, cluster probabilities of n samples.
        clusters: Number of clusters, if there is no head.
        seed: Seed of k-means.
        clustering: How clusters are found if there is no head.
        outliers: Whether the head's last cluster is that of outliers, see `Clusterer`.

    Returns:
        Clusters (n,), -1 for outliers, their probabilities (n,), and the head, if one was found.
    """
    found, head = prediction.probabilities, None
    if found is None:
        embedding = prediction.embedding
        # The graph needs a few prototypes for each cluster.
        few = len(embedding) < 3 * _FEWEST * clusters
        find = _centroids if clustering == "kmeans" or few else _prototypes
        head = find(embedding, clusters, seed)
        found = torch.cat([head(block) for block in torch.split(embedding, _ROWS)])
    own, confidence = most_probable(found, outliers and head is None)
    return own.numpy(), confidence.float().numpy(), head


def _centroids(embedding: Tensor, clusters: int, seed: int) -> nn.Module:
    return Centroids(kmeans(embedding, clusters, seed=seed).centroids)


def _prototypes(embedding: Tensor, clusters: int, seed: int) -> nn.Module:
    """Return many centroids of unit-length representations, and the cut of their graph."""
    points = normalize(embedding.float(), dim=1)
    many = min(_PROTOTYPES, len(points) // _FEWEST)
    means = kmeans(points, many, seed=seed, restarts=1, iterations=20)
    counts, scatter = sizes(points, means.centroids, means.assignments)
    kept = counts > 0
    found = cluster_prototypes(
        on_lattice(means.centroids[kept]),
        counts[kept],
        scatter[kept],
        clusters=clusters,
        neighbours=_NEIGHBOURS,
        seed=seed,
    )
    return UnitPrototypes(**found.tensors)
