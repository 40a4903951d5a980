"""The baseline of every method: k-means on the raw samples."""

import numpy as np
from numpy.typing import NDArray

from coterie.clustering.kmeans import kmeans, nearest_centroids
from coterie.contract.data import Indices, Samples
from coterie.evaluation.sampling import fixed_sample

_RAW_VALUES = 2**28
"""Values (samples × features) that k-means is fitted on: 1 GiB of float32."""
_BLOCK_VALUES = 2**24
"""Values per block of the assignment, and of the conversion to float32."""


def raw_clusters(
    samples: Samples, clusters: int, seed: int, most: int = _RAW_VALUES
) -> NDArray[np.int64]:
    """Cluster raw samples by k-means, without a float copy of all of them.

    The sample that it is fitted on has at most `most` values, or one sample per cluster.

    k-means is fitted on at most `most` values; of larger data on a sample.

    Returns:
        Each sample's cluster (n,).
    """

    def flat(rows: Indices) -> NDArray[np.float32]:
        found = np.empty((len(rows), width), np.float32)
        for start in range(0, len(rows), block):
            part = samples[rows[start : start + block]].reshape(-1, width)
            np.divide(part, scale, out=found[start : start + block], dtype=np.float32)
        return found

    every, width = np.arange(len(samples)), samples.size // len(samples)
    scale = np.float32(255 if samples.dtype == np.uint8 else 1)
    block = max(1, _BLOCK_VALUES // width)
    rows = fixed_sample(every, max(clusters, most // width), seed)
    found = kmeans(flat(rows), clusters, seed=seed)
    if len(rows) == len(every):
        return found.assignments.numpy()
    blocks = np.split(every, range(block, len(every), block))
    return np.concatenate(
        [nearest_centroids(flat(block), found.centroids).numpy() for block in blocks]
    )
