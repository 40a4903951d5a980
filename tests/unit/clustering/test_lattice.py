"""The lattice: rounding, exact sums and nearest centroids, in any order and any batch."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie.clustering.lattice import (
    cluster_sums,
    nearest,
    off_lattice,
    on_lattice,
    products,
    sums_of_starts,
)
from coterie.errors import DataError


def points(n: int, d: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    values = np.random.default_rng(seed).normal(size=(n, d)) * scale
    return on_lattice(torch.from_numpy(values))


def test_values_are_rounded_to_the_nearest_step() -> None:
    steps = on_lattice(torch.tensor([[1.0, -0.5, 1 / 4096, 0.4 / 4096, 0.6 / 4096]]))
    assert steps.tolist() == [[4096, -2048, 1, 0, 1]]
    assert torch.equal(off_lattice(steps)[0, :3], torch.tensor([1.0, -0.5, 1 / 4096]).double())


@pytest.mark.parametrize("bad", [513.0, -1e30, float("nan"), float("inf")])
def test_values_beyond_the_lattice_are_refused(bad: float) -> None:
    with pytest.raises(DataError, match="exact sums take at most 512; scale the features"):
        on_lattice(torch.tensor([[0.0, bad]]))


def test_the_nearest_centroid_is_that_of_the_distances_and_ties_go_to_the_first() -> None:
    x, centroids = points(300, 5), points(17, 5, seed=1)
    away = (x[:, None].long() - centroids[None].long()).square().sum(dim=2)
    assert torch.equal(nearest(x, centroids), away.argmin(dim=1))
    twice = torch.cat([centroids, centroids])
    assert torch.equal(nearest(x, twice), away.argmin(dim=1))


@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_sums_of_any_split_add_up_to_the_same_bits(seed: int, parts: int) -> None:
    generator = np.random.default_rng(seed)
    x, centroids = points(60, 4, seed, scale=30.0), points(3, 4, seed + 1, scale=30.0)
    whole = cluster_sums(x, nearest(x, centroids), 3)
    owner = torch.from_numpy(generator.integers(0, parts, 60))
    split = [x[owner == part] for part in range(parts)]
    found = sum(cluster_sums(own, nearest(own, centroids), 3) for own in split)
    assert torch.equal(found, whole)
    assert torch.equal(sum(products(own) for own in split), products(x))


def test_sums_are_those_of_the_definition() -> None:
    x, assigned = points(40, 3), torch.arange(40) % 4
    sums = cluster_sums(x, assigned, 5)
    for cluster in range(5):
        own = off_lattice(x[assigned == cluster])
        expected = torch.cat([own.sum(0), own.square().sum()[None], torch.tensor([len(own)])])
        torch.testing.assert_close(sums[cluster], expected.double(), rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(products(x), off_lattice(x).T @ off_lattice(x))


def test_sums_of_several_starts_are_those_of_each_alone() -> None:
    x = points(5000, 7, scale=30.0)
    starts = [points(k, 7, seed=k, scale=30.0) for k in (3, 1, 11)]
    for start, sums in zip(starts, sums_of_starts(x, starts), strict=True):
        assert torch.equal(sums, cluster_sums(x, nearest(x, start), len(start)))
