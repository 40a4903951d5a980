"""Clustering metrics as functions of a contingency table: ACC, NMI, ARI and Cohen's kappa.

All take counts (clusters, classes). Clusters and classes without a sample change nothing, except
that kappa may leave another one unmatched in their place. A table without any sample is refused.
"""

import numpy as np
from numpy.typing import NDArray

from coterie.clustering.contingency import Table
from coterie.errors import DataError
from coterie.evaluation.matching import match

SCORES = ("acc", "nmi", "ari", "kappa")
"""The names of the metrics."""


def accuracy(table: Table) -> float:
    """Return the clustering accuracy: the share of samples whose cluster is matched to their class.

    ACC = max over one-to-one matchings m of Σ_i table[i, m(i)] / n. Samples of unmatched clusters
    count as wrong.

    Args:
        table: Counts (clusters, classes).

    Raises:
        DataError: If the table is not one of counts, or holds no sample.
    """
    total = _total(table)
    return _matched(table) / total


def nmi(table: Table) -> float:
    """Return normalised mutual information I(cluster; class) / mean(H(cluster), H(class)).

    As in scikit-learn: one cluster and one class give 1; otherwise no information gives 0, so a
    single cluster over several classes, or several clusters of a single class, gives 0.

    Args:
        table: Counts (clusters, classes).

    Raises:
        DataError: If the table is not one of counts, or holds no sample.
    """
    joint = table / _total(table)
    cluster, label = joint.sum(axis=1), joint.sum(axis=0)
    if np.count_nonzero(cluster) == 1 and np.count_nonzero(label) == 1:
        return 1.0
    h_cluster, h_label = _entropy(cluster), _entropy(label)
    information = h_cluster + h_label - _entropy(joint)
    # Without any information, rounding can leave a few units in the last place.
    if information <= 8 * np.finfo(np.float64).eps:
        return 0.0
    mean = (h_cluster + h_label) / 2
    return float(min(1.0, information / mean))


def ari(table: Table) -> float:
    """Return the adjusted Rand index: agreement of pairs of samples, corrected for chance.

    With a pairs together in both, b only in the clusters, c only in the classes, d in neither:
    2(ad − bc) / ((a + b)(b + d) + (a + c)(c + d)). As in scikit-learn, b = c = 0 gives 1, which
    covers one cluster of one class and n clusters of n classes.

    Args:
        table: Counts (clusters, classes).

    Raises:
        DataError: If the table is not one of counts, or holds no sample.
    """
    total = _total(table)
    # Python integers: products of pair counts exceed 64 bits from about 10⁵ samples.
    together = _pairs(table.ravel())
    only_cluster = _pairs(table.sum(axis=1)) - together
    only_class = _pairs(table.sum(axis=0)) - together
    if only_cluster == 0 and only_class == 0:
        return 1.0
    neither = total * (total - 1) // 2 - together - only_cluster - only_class
    above = 2 * (together * neither - only_cluster * only_class)
    below = (together + only_cluster) * (only_cluster + neither)
    below += (together + only_class) * (only_class + neither)
    return above / below


def kappa(table: Table) -> float:
    """Return Cohen's kappa of classes and the clusters' matched classes: (p_o − p_e) / (1 − p_e).

    p_o is the accuracy and p_e the agreement expected from independent marginals. Samples of an
    unmatched cluster have a predicted label of their own, which agrees with no class. Where kappa
    is undefined (p_e = 1: one class, all of it in one matched cluster; scikit-learn returns NaN),
    it is 1 here, like NMI and ARI.

    Args:
        table: Counts (clusters, classes).

    Raises:
        DataError: If the table is not one of counts, or holds no sample.
    """
    total = _total(table)
    predicted, true = table.sum(axis=1), table.sum(axis=0)
    # n² p_e and n² p_o as exact integers, so that p_e = 1 is recognised.
    expected = sum(int(predicted[row]) * int(true[column]) for row, column in match(table).items())
    observed = _matched(table) * total
    if expected == total * total:
        return 1.0
    return (observed - expected) / (total * total - expected)


def clustering_scores(table: Table) -> dict[str, float]:
    """Score a contingency table (clusters, classes), for example the sum over clients.

    Returns:
        Fractions by the names in `SCORES`: clustering accuracy, in 0..1; normalised mutual
        information, in 0..1; adjusted Rand index, in −0.5..1; Cohen's kappa after matching, in
        −1..1.

    Raises:
        DataError: If the table is not one of counts, or holds no sample.
    """
    values = accuracy(table), nmi(table), ari(table), kappa(table)
    return dict(zip(SCORES, values, strict=True))


def _total(table: Table) -> int:
    """Return the number of samples in a table.

    Refuse a table that is not one of counts or is empty.
    """
    if table.ndim != 2 or not np.issubdtype(table.dtype, np.integer) or (table < 0).any():
        raise DataError(
            f"a table of shape {table.shape} and type {table.dtype}: give non-negative integer "
            "counts of shape (clusters, classes)."
        )
    total = int(table.sum())
    if total == 0:
        raise DataError(f"a table of shape {table.shape} without a sample: score at least one.")
    return total


def _matched(table: Table) -> int:
    """Return the number of samples whose cluster is matched to their class."""
    return sum(int(table[row, column]) for row, column in match(table).items())


def _entropy(p: NDArray[np.float64]) -> float:
    """Return −Σ p log p in nats."""
    present = p[p > 0]
    return float(-(present * np.log(present)).sum())


def _pairs(counts: NDArray[np.int64]) -> int:
    """Return Σ count (count − 1) / 2."""
    return sum(count * (count - 1) // 2 for count in counts.tolist())
