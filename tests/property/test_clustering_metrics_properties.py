import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from sklearn import metrics

from coterie.clustering.contingency import contingency
from coterie.evaluation.clustering_metrics import accuracy, clustering_scores, kappa

SIZES = array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=6)
TABLES = arrays(np.int64, SIZES, elements=st.integers(0, 40)).filter(lambda table: table.sum() > 0)


def values(scores):
    return tuple(scores.values())


def expand(table):
    """Assignments and labels that a table counts."""
    clusters, classes = np.indices(table.shape)
    return np.repeat(clusters.ravel(), table.ravel()), np.repeat(classes.ravel(), table.ravel())


@given(TABLES, st.randoms(use_true_random=False))
def test_renaming_clusters_and_classes_changes_nothing(table, random):
    rows, columns = list(range(table.shape[0])), list(range(table.shape[1]))
    random.shuffle(rows)
    random.shuffle(columns)
    renamed = clustering_scores(table[rows][:, columns])
    before = clustering_scores(table)
    assert values(renamed)[:3] == pytest.approx(values(before)[:3], abs=1e-12)


@given(TABLES)
def test_empty_clusters_and_classes_change_nothing(table):
    padded = np.pad(table, ((0, 2), (0, 1)))
    before, after = clustering_scores(table), clustering_scores(padded)
    assert values(after)[1:3] == pytest.approx(values(before)[1:3], abs=1e-12)
    assert after["acc"] == before["acc"]


@given(TABLES)
def test_scores_are_scikit_learns_and_in_range(table):
    assignments, labels = expand(table)
    scores = clustering_scores(contingency(assignments, labels, *table.shape))
    expected = metrics.adjusted_rand_score(labels, assignments)
    assert scores["ari"] == pytest.approx(expected, abs=1e-10)
    theirs = metrics.normalized_mutual_info_score(labels, assignments)
    assert scores["nmi"] == pytest.approx(theirs, abs=1e-10)
    assert 0 < scores["acc"] <= 1
    assert 0 <= scores["nmi"] <= 1
    assert -0.5 <= scores["ari"] <= 1
    assert -1 <= scores["kappa"] <= 1


@given(st.integers(2, 6), st.integers(1, 20), st.data())
def test_kappa_of_balanced_classes_is_a_line_in_accuracy(k, per_class, data):
    draws = st.lists(st.integers(0, k - 1), min_size=k * per_class, max_size=k * per_class)
    assignments = np.array(data.draw(draws))
    labels = np.repeat(np.arange(k), per_class)
    table = contingency(assignments, labels, k, k)
    assert kappa(table) == pytest.approx((k * accuracy(table) - 1) / (k - 1), abs=1e-12)


@given(TABLES)
def test_clusters_and_classes_may_trade_places(table):
    before, after = clustering_scores(table), clustering_scores(table.T)
    assert values(after)[:3] == pytest.approx(values(before)[:3], abs=1e-12)
