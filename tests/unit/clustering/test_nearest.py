"""The nearest other points by cosine, against sorted similarities."""

import numpy as np

from coterie.clustering.nearest import nearest_others


def test_they_are_the_others_of_largest_cosine_in_ascending_order() -> None:
    points = np.random.default_rng(0).normal(size=(30, 4))
    unit = points / np.linalg.norm(points, axis=1, keepdims=True)
    cosine = unit @ unit.T
    np.fill_diagonal(cosine, -2.0)
    expected = np.sort(np.argsort(-cosine, axis=1)[:, :5], axis=1)
    found = nearest_others(points, 5)
    assert found.dtype == np.int64
    assert np.array_equal(found, expected)
    # Lengths do not matter, and float32 is no other order.
    lengths = np.random.default_rng(1).uniform(0.1, 9.0, size=(30, 1))
    assert np.array_equal(nearest_others(lengths * points, 5), expected)
    assert np.array_equal(nearest_others(points.astype(np.float32), 5), expected)


def test_a_point_is_not_its_own_neighbour_even_beside_its_equals() -> None:
    found = nearest_others(np.ones((6, 3)), 3)
    assert not (found == np.arange(6)[:, None]).any()
    assert found.shape == (6, 3)


def test_with_few_points_all_others_are_taken() -> None:
    found = nearest_others(np.random.default_rng(0).normal(size=(3, 2)), 20)
    assert found.tolist() == [[1, 2], [0, 2], [0, 1]]
