"""Which cluster a sample is in: by the model's head, or by k-means where it has none."""

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.clustering.kmeans import kmeans
from coterie.contract.clusterer import Prediction
from coterie.networks.heads import Centroids

_ROWS = 16384


def assign(
    prediction: Prediction, clusters: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.float32], Centroids | None]:
    """The likeliest clusters and their probabilities; without a head, k-means makes one.

    Args:
        prediction: Of n samples.
        clusters: How many k-means makes.
        seed: Of k-means.

    Returns:
        Clusters (n,), probabilities (n,), and k-means's centroids if it was needed.
    """
    found, centroids = prediction.probabilities, None
    if found is None:
        centroids = Centroids(kmeans(prediction.embedding, clusters, seed=seed).centroids)
        blocks = torch.split(prediction.embedding, _ROWS)
        found = torch.cat([centroids(block) for block in blocks])
    confidence, assigned = found.max(dim=1)
    return assigned.numpy(), confidence.float().numpy(), centroids
