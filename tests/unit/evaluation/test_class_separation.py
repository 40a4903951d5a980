"""Distances between classes over distances within them."""

import math

import numpy as np
import pytest
import torch

from coterie.evaluation import class_separation
from coterie.evaluation.class_separation import (
    ClassSeparation,
    class_distances,
    class_distances_figure,
)


def test_it_is_the_ratio_of_mean_distances() -> None:
    points = torch.tensor([[0.0], [2.0], [10.0], [13.0]])
    between = np.mean([10, 13, 8, 11])
    within = np.mean([2, 3])
    found = ClassSeparation()(points, None, np.array([0, 0, 1, 1]))
    assert found == pytest.approx(between / within)
    assert ClassSeparation().name == "class_separation"


def test_blocks_scale_and_unknown_classes_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    points, labels = torch.randn(50, 3, generator=generator), np.arange(50) % 4
    whole = ClassSeparation()(points, None, labels)
    monkeypatch.setattr(class_separation, "_ROWS", 7)
    assert ClassSeparation()(points, None, labels) == pytest.approx(whole)
    assert ClassSeparation()(5 * points, None, labels) == pytest.approx(whole)
    more = torch.cat((points, 100 * torch.ones(3, 3)))
    assert ClassSeparation()(more, None, np.append(labels, [-1, -1, -1])) == pytest.approx(whole)


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2], [-1, -1, -1]])
def test_without_both_kinds_of_pairs_there_is_no_number(labels: list[int]) -> None:
    assert math.isnan(ClassSeparation()(torch.eye(3), None, np.array(labels)))


def test_each_two_classes_have_the_mean_distance_of_their_pairs(tmp_path) -> None:
    points = torch.tensor([[0.0], [2.0], [10.0], [13.0], [99.0], [50.0]])
    labels = np.array([0, 0, 1, 1, -1, 2])
    found = class_distances(points, labels)
    expected = [[2.0, 10.5, 49.0], [10.5, 3.0, 38.5], [49.0, 38.5, math.nan]]
    np.testing.assert_allclose(found, expected)
    names = ("a", "b", "c")
    path = class_distances_figure(points, labels, names, tmp_path / "f" / "x.png", seed=0)
    assert path.read_bytes().startswith(b"\x89PNG")
