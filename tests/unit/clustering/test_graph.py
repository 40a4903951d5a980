"""The graph over prototypes, its cut, and the number of clusters that its spectrum shows."""

import numpy as np
import pytest
from sklearn.datasets import make_moons
from sklearn.metrics import adjusted_rand_score

from coterie.clustering.graph import cut, eigengap, fuzzy_graph, spectrum
from coterie.errors import DataError


def blobs(count: int, each: int = 40) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    centres = np.eye(count) * 9
    return centres.repeat(each, 0) + generator.normal(size=(count * each, count)), np.arange(
        count
    ).repeat(each)


def test_each_point_has_weight_one_to_its_nearest_and_log2_in_all() -> None:
    points = np.random.default_rng(0).normal(size=(80, 3))
    graph = fuzzy_graph(points, 8).toarray()
    assert np.allclose(graph, graph.T)
    assert (np.diag(graph) == 0).all()
    away = np.linalg.norm(points[:, None] - points[None], axis=2) + np.diag(np.full(80, np.inf))
    assert np.allclose(graph[np.arange(80), away.argmin(1)], 1.0)
    # One direction, by the definition: exp(-(d - rho) / sigma) sums to log2(k + 1).
    near = np.sort(away, axis=1)[:, :8]
    row = graph[0, np.argsort(away[0])[:8]]
    assert ((row >= 0) & (row <= 1 + 1e-12)).all()
    sigma = _sigma(near[0])
    mine = np.exp(-(near[0] - near[0, 0]) / sigma)
    assert (row >= mine - 1e-9).all()


def _sigma(near: np.ndarray) -> float:
    low, high = 1e-9, 1e9
    for _ in range(200):
        middle = np.sqrt(low * high)
        over = np.exp(-(near - near[0]) / middle).sum() > np.log2(len(near) + 1)
        low, high = (low, middle) if over else (middle, high)
    return float(low)


def test_the_cut_finds_moons_that_k_means_does_not() -> None:
    points, groups = make_moons(400, noise=0.05, random_state=0)
    found = spectrum(fuzzy_graph(points, 10), 10)
    assert found.values[0] == pytest.approx(1.0)
    assert adjusted_rand_score(groups, cut(found, 2, 0)) > 0.99


@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_the_spectrum_shows_the_number_of_groups(count: int) -> None:
    points, groups = blobs(count)
    found = spectrum(fuzzy_graph(points, 10), 20)
    assert eigengap(found) == count
    assert adjusted_rand_score(groups, cut(found, count, 3)) == 1.0


def test_a_graph_is_the_same_for_permuted_points() -> None:
    points, _ = blobs(3)
    order = np.random.default_rng(1).permutation(len(points))
    once, again = fuzzy_graph(points, 7).toarray(), fuzzy_graph(points[order], 7).toarray()
    assert np.allclose(once[order][:, order], again)


def test_too_few_points_and_too_many_clusters_are_told() -> None:
    with pytest.raises(DataError, match="a graph over 5 prototypes takes 2 to 4"):
        fuzzy_graph(np.zeros((5, 2)), 5)
    found = spectrum(fuzzy_graph(np.random.default_rng(0).normal(size=(6, 2)), 3), 20)
    with pytest.raises(DataError, match="clusters=7: a graph over 6 prototypes has 6 eigenvectors"):
        cut(found, 7, 0)


def test_identical_points_make_a_graph() -> None:
    graph = fuzzy_graph(np.zeros((9, 2)), 4)
    assert np.isfinite(graph.toarray()).all()
