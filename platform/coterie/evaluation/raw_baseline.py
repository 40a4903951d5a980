"""The baseline of every method: k-means on the raw samples."""

import numpy as np
from numpy.typing import NDArray

from coterie.clustering.kmeans import kmeans, nearest_centroids
from coterie.contract.data import Indices, Samples
from coterie.evaluation.sampling import fixed_sample

_RAW_VALUES = 2**28
"""Values (samples × features) that k-means is fitted on: 1 GiB of float32."""
_RAW_ROWS = 4096
"""Samples per block of the assignment."""


def raw_clusters(
    samples: Samples, clusters: int, seed: int, most: int = _RAW_VALUES
) -> NDArray[np.int64]:
    """Cluster raw samples by k-means, without a float copy of all of them.

    Args:
        samples: (n, …), uint8 or float32.
        clusters: The number of clusters.
        seed: Seed of k-means, and of the sample that it is fitted on.
        most: Values that k-means is fitted on; of larger data it is a sample.

    Returns:
        Each sample's cluster (n,).
    """

    def flat(rows: Indices) -> NDArray[np.float32]:
        scale = 255.0 if samples.dtype == np.uint8 else 1.0
        return samples[rows].reshape(len(rows), -1).astype(np.float32) / scale

    every, width = np.arange(len(samples)), samples.size // len(samples)
    rows = fixed_sample(every, max(clusters, most // width), seed)
    found = kmeans(flat(rows), clusters, seed=seed)
    if len(rows) == len(every):
        return found.assignments.numpy()
    blocks = np.split(every, range(_RAW_ROWS, len(every), _RAW_ROWS))
    return np.concatenate(
        [nearest_centroids(flat(block), found.centroids).numpy() for block in blocks]
    )
