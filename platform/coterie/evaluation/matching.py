"""Contingency tables of clusters against classes, and the matching of one to the other."""

from scipy.optimize import linear_sum_assignment

from coterie.clustering.contingency import Table


def match(table: Table) -> dict[int, int]:
    """Match clusters to classes one to one so that the overlap is as large as it can be.

    The Hungarian algorithm on the counts. A rectangular table leaves the surplus clusters (or
    classes) unmatched.

    Args:
        table: Counts (clusters, classes).

    Returns:
        dict[int, int]: Cluster to class, min(clusters, classes) pairs.
    """
    rows, columns = linear_sum_assignment(table, maximize=True)
    return {int(row): int(column) for row, column in zip(rows, columns, strict=True)}
