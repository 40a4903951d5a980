"""Searches in float32 find what exact arithmetic finds, and say where they cannot."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.clustering.kmeans import nearest_centroids
from coterie.clustering.lattice import LIMIT, UNIT, nearest, on_lattice, sums_of_starts
from coterie.clustering.narrow_search import narrow_nearest


def exact_nearest(points, centroids):
    """The nearest centroids by exact fractions; ties go to the lowest index."""

    def away(x, c):
        return sum((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(x, c, strict=True))

    rows = centroids.tolist()
    return [min(range(len(rows)), key=lambda j: away(x, rows[j])) for x in points.tolist()]


def drawn(seed, samples, features, spread, offset):
    generator = torch.Generator().manual_seed(seed)
    return offset + spread * torch.randn(samples, features, generator=generator)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    features=st.integers(1, 40),
    spread=st.sampled_from([1e-3, 1.0, 100.0]),
    offset=st.sampled_from([0.0, 1.0, 1e3]),
    apart=st.sampled_from([0.0, 1e-7, 1e-4, 1.0]),
)
def test_what_is_called_certain_is_what_fractions_find(seed, features, spread, offset, apart):
    points = drawn(seed, 12, features, spread, offset)
    centroids = points[:3].repeat(2, 1) + apart * drawn(seed + 1, 6, features, spread, 0.0)
    half = (centroids.double().square().sum(dim=1) / 2).float()
    near, unsure = narrow_nearest(points, centroids, half)
    truth = torch.tensor(exact_nearest(points, centroids))
    assert torch.equal(near[~unsure], truth[~unsure])
    if apart == 0:
        assert bool(unsure.all())  # each centroid is there twice
    assert torch.equal(nearest_centroids(points, centroids), truth)
    if max(float(points.abs().max()), float(centroids.abs().max())) < LIMIT:
        steps, starts = on_lattice(points), on_lattice(centroids)
        assert nearest(steps, starts).tolist() == exact_nearest(steps, starts)


def test_points_that_are_far_apart_are_certain():
    points = drawn(0, 1000, 64, 1.0, 0.0)
    centroids = points[:50]
    _, unsure = narrow_nearest(points, centroids, centroids.square().sum(dim=1) / 2)
    assert float(unsure.float().mean()) < 0.01


def test_the_largest_values_of_the_lattice_are_searched_exactly():
    steps = torch.full((4, 300), LIMIT * UNIT, dtype=torch.int32)
    steps[:, 0] -= torch.arange(4, dtype=torch.int32)
    assert nearest(steps, steps).tolist() == [0, 1, 2, 3]
    assert nearest(steps, steps[[1, 0, 1]]).tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize("narrowed", ["medium", "high"])
def test_products_in_fewer_bits_decide_nothing(narrowed):
    points = drawn(0, 10, 8, 1.0, 0.0)
    try:
        torch.set_float32_matmul_precision(narrowed)
        _, unsure = narrow_nearest(points, points, points.square().sum(dim=1) / 2)
        assert bool(unsure.all())
        assert nearest_centroids(points, points).tolist() == list(range(10))
    finally:
        torch.set_float32_matmul_precision("highest")


def test_under_autocast_they_decide_nothing_either():
    steps = on_lattice(drawn(0, 10, 8, 1.0, 0.0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, unsure = narrow_nearest(steps.float(), steps.float(), steps.float().square().sum(1) / 2)
        assert bool(unsure.all())
        assert nearest(steps, steps).tolist() == list(range(10))


def test_no_points_and_one_centroid():
    steps = on_lattice(drawn(0, 5, 3, 1.0, 0.0))
    assert nearest(steps[:0], steps).shape == (0,)
    assert nearest(steps, steps[:1]).tolist() == [0] * 5
    (sums,) = sums_of_starts(steps, [steps[:1]])
    assert float(sums[0, -1]) == 5
