"""What the last evaluation of a run gives."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coterie.networks.heads import Centroids


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The last evaluation of a run.

    Attributes:
        metrics: Group to metrics: "clustering", "clustering_test", "kmeans_raw", "linear", "knn";
            of a classifier "train" and "test" in place of the first three.
        embedding: Training samples' representations (n, features).
        assignments: Their clusters (n,), or None where there is nothing to cluster by.
        confidence: The assigned cluster's probability (n,).
        centroids: The head that assigned them, where k-means made the clusters.
        table: Contingency of clusters and classes (clusters, classes), or None without labels.
    """

    metrics: Mapping[str, Mapping[str, float]]
    embedding: Tensor
    assignments: NDArray[np.int64] | None
    confidence: NDArray[np.float32] | None
    table: NDArray[np.int64] | None
    centroids: Centroids | None = None
