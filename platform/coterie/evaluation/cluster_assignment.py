"""Assign samples to clusters: by the model's head, or by k-means if it has none."""

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.clustering.kmeans import kmeans
from coterie.contract.clusterer import Prediction
from coterie.networks.heads import Centroids

_ROWS = 16384
"""Rows per block."""


def assign_clusters(
    prediction: Prediction, clusters: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.float32], Centroids | None]:
    """Assign each sample to its most probable cluster; without a head, run k-means first.

    Args:
        prediction: Embeddings and, if the model has a head, cluster probabilities of n samples.
        clusters: Number of clusters of k-means.
        seed: Seed of k-means.

    Returns:
        Clusters (n,), their probabilities (n,), and the centroids of k-means if it was run.
    """
    found, centroids = prediction.probabilities, None
    if found is None:
        centroids = Centroids(kmeans(prediction.embedding, clusters, seed=seed).centroids)
        blocks = torch.split(prediction.embedding, _ROWS)
        found = torch.cat([centroids(block) for block in blocks])
    confidence, assigned = found.max(dim=1)
    return assigned.numpy(), confidence.float().numpy(), centroids
