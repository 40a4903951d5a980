from itertools import permutations

import numpy as np
import pytest
from sklearn import metrics

from coterie.clustering.contingency import contingency
from coterie.errors import DataError
from coterie.evaluation.clustering_metrics import (
    SCORES,
    accuracy,
    ari,
    clustering_scores,
    kappa,
    nmi,
)
from coterie.evaluation.matching import match


def expand(table):
    """Assignments and labels that a table counts."""
    cells = [
        (i, j) for i, row in enumerate(table) for j, count in enumerate(row) for _ in range(count)
    ]
    assignments, labels = zip(*cells, strict=True)
    return np.array(assignments), np.array(labels)


def random_table(seed, clusters, classes, high=30):
    table = np.random.default_rng(seed).integers(0, high, (clusters, classes))
    table[0, 0] += 1
    return table


def best_overlap(table):
    """The largest sum over one-to-one matchings, by trying all of them."""
    clusters, classes = table.shape
    if clusters > classes:
        return best_overlap(table.T)
    choices = permutations(range(classes), clusters)
    return max(sum(table[i, j] for i, j in enumerate(choice)) for choice in choices)


def predicted_labels(table):
    """Each sample's matched class; unmatched clusters get labels beyond the classes."""
    pairs = match(table)
    names = np.array([pairs.get(i, table.shape[1] + i) for i in range(table.shape[0])])
    assignments, labels = expand(table)
    return names[assignments], labels


SHAPES = [(2, 2), (3, 3), (6, 6), (3, 6), (6, 3), (1, 4), (4, 1), (5, 6)]
TABLES = [random_table(seed, *shape) for seed, shape in enumerate(SHAPES)]


def test_contingency_counts_each_pair_and_keeps_empty_clusters_and_classes():
    table = contingency(np.array([0, 0, 2, 2, 2]), np.array([1, 1, 0, 3, 3]), 4, 5)
    expected = np.zeros((4, 5), dtype=np.int64)
    expected[0, 1], expected[2, 0], expected[2, 3] = 2, 1, 2
    assert table.dtype == np.int64
    np.testing.assert_array_equal(table, expected)


def test_contingency_is_scikit_learns_and_adds_up():
    rng = np.random.default_rng(0)
    a, y = rng.integers(0, 7, 500), rng.integers(0, 4, 500)
    whole = contingency(a, y, 7, 4)
    np.testing.assert_array_equal(whole, metrics.cluster.contingency_matrix(y, a).T)
    parts = contingency(a[:123], y[:123], 7, 4) + contingency(a[123:], y[123:], 7, 4)
    np.testing.assert_array_equal(whole, parts)


@pytest.mark.parametrize(
    ("assignments", "labels", "message"),
    [
        ([0, 1], [0], "2 assignments and 1 labels"),
        ([0, 3], [0, 0], r"assignments lie in 0\.\.3: they must lie in 0\.\.2"),
        ([0, 1], [0, -1], r"labels lie in -1\.\.0: they must lie in 0\.\.1"),
        ([0.0, 1.0], [0, 1], "assignments of shape .* and type float64"),
    ],
)
def test_contingency_refuses_what_it_cannot_count(assignments, labels, message):
    with pytest.raises(DataError, match=message):
        contingency(np.array(assignments), np.array(labels), 3, 2)


@pytest.mark.parametrize("table", TABLES, ids=str)
def test_match_is_one_to_one_and_of_maximum_overlap(table):
    pairs = match(table)
    assert len(pairs) == min(table.shape) == len(set(pairs.values()))
    assert sum(table[i, j] for i, j in pairs.items()) == best_overlap(table)
    assert accuracy(table) == best_overlap(table) / table.sum()


def test_unmatched_clusters_count_as_wrong():
    table = np.array([[10, 0], [9, 0], [0, 1]])
    assert match(table) == {0: 0, 2: 1}
    assert accuracy(table) == 11 / 20


def test_greedy_matching_would_be_worse():
    table = np.array([[10, 9], [8, 0]])
    assert match(table) == {0: 1, 1: 0}
    assert accuracy(table) == 17 / 27


@pytest.mark.parametrize("table", TABLES, ids=str)
def test_nmi_is_scikit_learns(table):
    assignments, labels = expand(table)
    expected = metrics.normalized_mutual_info_score(labels, assignments)
    assert nmi(table) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    "table", [[[2, 0, 0], [0, 0, 0], [3, 0, 1]], [[50, 50, 0], [0, 10, 30], [0, 0, 20]]]
)
def test_kappa_does_not_depend_on_how_clusters_and_classes_are_numbered(table):
    found = {
        round(kappa(np.array(table)[np.ix_(rows, columns)]), 12)
        for rows in permutations(range(3))
        for columns in permutations(range(3))
    }
    assert len(found) == 1
    best = [
        cohen
        for columns in permutations(range(3))
        if sum(table[r][c] for r, c in enumerate(columns)) == best_overlap(np.array(table))
        for cohen in [chance_corrected(table, columns)]
    ]
    assert found == {round(max(best), 12)}


def chance_corrected(table, columns):
    counts = np.array(table)
    n, matched = counts.sum(), sum(counts[r, c] for r, c in enumerate(columns))
    chance = sum(counts[r].sum() * counts[:, c].sum() for r, c in enumerate(columns))
    return (matched / n - chance / n**2) / (1 - chance / n**2)


@pytest.mark.parametrize("table", TABLES, ids=str)
def test_ari_is_scikit_learns(table):
    assignments, labels = expand(table)
    expected = metrics.adjusted_rand_score(labels, assignments)
    assert ari(table) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("table", TABLES, ids=str)
def test_kappa_is_scikit_learns_after_matching(table):
    predicted, labels = predicted_labels(table)
    expected = metrics.cohen_kappa_score(labels, predicted)
    assert kappa(table) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ([[7]], (1.0, 1.0, 1.0, 1.0)),  # one cluster, one class
        ([[0, 0, 0], [0, 5, 0]], (1.0, 1.0, 1.0, 1.0)),  # the same, with empty ones around
        ([[5, 5]], (0.5, 0.0, 0.0, 0.0)),  # one cluster over two classes
        ([[5], [5]], (0.5, 0.0, 0.0, 0.0)),  # two clusters of one class
        ([[1, 0], [0, 1]], (1.0, 1.0, 1.0, 1.0)),  # every sample on its own
        ([[5, 5], [5, 5]], (0.5, 0.0, -1 / 18, 0.0)),  # independent
    ],
)
def test_degenerate_tables(table, expected):
    table = np.array(table)
    scores = clustering_scores(table)
    assert tuple(scores) == SCORES
    assert tuple(scores.values()) == pytest.approx(expected, abs=1e-12)
    assignments, labels = expand(table)
    assert scores["nmi"] == pytest.approx(metrics.normalized_mutual_info_score(labels, assignments))
    assert scores["ari"] == pytest.approx(metrics.adjusted_rand_score(labels, assignments))


def test_ari_of_a_million_samples_does_not_overflow():
    table = np.array([[400_000, 100_000], [100_000, 400_000]])
    p = 0.36 / 1  # (2·0.8 − 1)², the limit of the adjusted Rand index for two balanced classes
    assert ari(table) == pytest.approx(p, abs=1e-5)


def test_scores_from_assignments_are_those_of_the_table():
    assignments, labels = expand(TABLES[4])
    scores = clustering_scores(contingency(assignments, labels, 6, 3))
    assert scores == clustering_scores(TABLES[4])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (np.zeros((2, 3), dtype=np.int64), r"shape \(2, 3\) without a sample"),
        (np.array([[1, -1]]), "non-negative integer counts"),
        (np.array([[0.5, 0.5]]), "type float64"),
        (np.array([1, 2]), r"shape \(2,\)"),
    ],
)
def test_what_is_no_table_of_counts_is_refused(table, message):
    for metric in (accuracy, nmi, ari, kappa):
        with pytest.raises(DataError, match=message):
            metric(table)
