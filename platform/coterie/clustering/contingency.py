"""Contingency tables of clusters and classes."""

import numpy as np
from jaxtyping import Int64, Integer

from coterie.errors import DataError

OUTLIER = -1
"""The cluster of samples that belong to none."""

Table = Int64[np.ndarray, "clusters classes"]
"""Counts of each class in each cluster. Tables of disjoint samples add up, so clients can return
tables in place of assignments."""


def contingency(
    assignments: Integer[np.ndarray, "n"],
    labels: Integer[np.ndarray, "n"],
    clusters: int,
    classes: int,
) -> Table:
    """Count the samples of each class in each cluster.

    Args:
        assignments: Each sample's cluster, in 0..clusters−1.
        labels: Each sample's class, in 0..classes−1.
        clusters: The number of clusters, empty ones included.
        classes: The number of classes, absent ones included.

    Returns:
        Counts, which sum to n.

    Raises:
        DataError: If the lengths differ or a value is out of range.
    """
    rows = _indices(assignments, clusters, "assignments")
    columns = _indices(labels, classes, "labels")
    if len(rows) != len(columns):
        raise DataError(
            f"{len(rows)} assignments and {len(columns)} labels: give one of each per sample."
        )
    counts = np.bincount(rows * classes + columns, minlength=clusters * classes)
    return counts.astype(np.int64).reshape(clusters, classes)


def _indices(values: Integer[np.ndarray, "n"], count: int, name: str) -> Int64[np.ndarray, "n"]:
    """Convert to int64 and check against 0..count−1."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise DataError(
            f"{name} of shape {array.shape} and type {array.dtype}: give integers of shape (n,)."
        )
    if array.size and (array.min() < 0 or array.max() >= count):
        raise DataError(
            f"{name} lie in {array.min()}..{array.max()}: they must lie in 0..{count - 1}."
        )
    return array.astype(np.int64)
