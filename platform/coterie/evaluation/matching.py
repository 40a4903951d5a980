"""The best one-to-one matching of clusters to classes."""

import numpy as np
from scipy.optimize import linear_sum_assignment

from coterie.clustering.contingency import Table


def match(table: Table) -> dict[int, int]:
    """Match clusters to classes one to one with the largest overlap.

    It is the Hungarian algorithm on the counts. Of several such matchings it is one with the least
    agreement by chance, however clusters and classes are numbered. In a rectangular table the
    surplus clusters (or classes) stay unmatched.

    Args:
        table: Counts (clusters, classes).

    Returns:
        dict[int, int]: Cluster to class, min(clusters, classes) pairs.
    """
    sizes = np.outer(table.sum(axis=1), table.sum(axis=0)) / max(1, int(table.sum())) ** 2
    # Over all pairs less than one sample, so that it only decides between equal overlaps.
    unlike = (1.0 - sizes) / (min(table.shape) + 1)
    rows, columns = linear_sum_assignment(table + unlike, maximize=True)
    return {int(row): int(column) for row, column in zip(rows, columns, strict=True)}
