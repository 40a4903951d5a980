"""The best one-to-one matching of clusters to classes."""

from scipy.optimize import linear_sum_assignment

from coterie.clustering.contingency import Table


def match(table: Table) -> dict[int, int]:
    """Match clusters to classes one to one with the largest overlap.

    It is the Hungarian algorithm on the counts. In a rectangular table the surplus clusters (or
    classes) stay unmatched.

    Args:
        table: Counts (clusters, classes).

    Returns:
        dict[int, int]: Cluster to class, min(clusters, classes) pairs.
    """
    rows, columns = linear_sum_assignment(table, maximize=True)
    return {int(row): int(column) for row, column in zip(rows, columns, strict=True)}
