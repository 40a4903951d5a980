"""The quadratic classifier: ridge regression on products, the same bits in any batch."""

import numpy as np
import pytest
import torch

from coterie.clustering.lattice import off_lattice, on_lattice
from coterie.networks.quadratic import (
    RIDGE,
    QuadraticClassifier,
    expand,
    fit_sums,
    fitted,
    products_of,
)


def unit_points(samples: int, width: int, seed: int = 0) -> torch.Tensor:
    drawn = np.random.default_rng(seed).normal(size=(samples, width))
    return on_lattice(torch.from_numpy(drawn / np.linalg.norm(drawn, axis=1, keepdims=True)))


@pytest.mark.parametrize(
    ("width", "samples", "leading"),
    [(64, 70_000, 64), (64, 9_298, 31), (64, 1_797, 9), (64, 100, 0), (2, 1_000, 2)],
)
def test_sixteen_samples_stand_behind_each_value(width, samples, leading) -> None:
    assert products_of(width, samples) == leading
    size = 1 + width + leading * (leading + 1) // 2
    assert leading == 0 or size <= samples / 16


def test_features_are_one_the_values_and_their_products() -> None:
    points = unit_points(5, 4)
    values = off_lattice(expand(points, 2)).numpy()
    x = off_lattice(points).numpy() * 2
    by_hand = np.column_stack([np.ones(5), x, x[:, 0] ** 2, x[:, 0] * x[:, 1], x[:, 1] ** 2])
    np.testing.assert_allclose(values, by_hand, atol=2**-12)


def test_the_weights_are_those_of_a_ridge_regression_on_all_samples() -> None:
    points = unit_points(400, 3)
    labels = (off_lattice(points)[:, 0].abs() > 0.5).long()
    parts = [
        fit_sums(points[rows], [labels[rows]], 2, 3) for rows in (slice(0, 90), slice(90, 400))
    ]
    weights = fitted(*(sum(each) for each in zip(*parts, strict=True)))
    whole = fitted(*fit_sums(points, [labels], 2, 3))
    assert torch.equal(weights, whole)
    values = off_lattice(expand(points, 3)).numpy()
    second = values.T @ values
    noise = RIDGE * np.trace(second) / len(second) * np.eye(len(second))
    by_hand = np.linalg.solve(second + noise, values.T @ np.eye(2)[labels])
    np.testing.assert_allclose(weights.numpy() / 2**20, by_hand, atol=1e-5)


def test_it_learns_a_quadric_and_its_probabilities_do_not_depend_on_the_batch() -> None:
    points = unit_points(2_000, 3)
    labels = (off_lattice(points)[:, 0].abs() > 0.5).long()
    classifier = QuadraticClassifier(fitted(*fit_sums(points, [labels], 2, 3)), 3)
    found = classifier(off_lattice(points).float())
    assert float((found.argmax(dim=1) == labels).double().mean()) > 0.9
    torch.testing.assert_close(found.sum(dim=1), torch.ones(2_000))
    alone = torch.cat([classifier(row) for row in off_lattice(points).float().split(7)])
    assert torch.equal(found, alone)
