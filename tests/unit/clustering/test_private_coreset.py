"""Private clusters: what each query says about a row, the tree without noise, and its ends."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.nn.functional import normalize

from coterie.clustering.lattice import UNIT, clipped_rows
from coterie.clustering.private_coreset import (
    _COUNT_STEPS,
    halfspaces,
    noise_of,
    private_clusters,
)


def exact(sums: NDArray[np.int64], sigma: int, purpose: str) -> NDArray[np.int64]:
    return sums


def unit_rows(number: int, width: int = 8, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(number, width, generator=generator), dim=1)


class Answers:
    """Gives the answers of another run, and notes how far apart the exact ones are."""

    def __init__(self, known: list[tuple[Any, int]] | None = None, noise: float = 0.0) -> None:
        self.known, self.noise = known, noise
        self.asked: list[tuple[Any, int]] = []
        self.given: list[tuple[Any, int]] = []
        self._draws = np.random.default_rng(1)

    def __call__(self, sums: NDArray[np.int64], sigma: int, purpose: str) -> NDArray[np.int64]:
        self.asked.append((sums.copy(), sigma))
        answer = sums + (self._draws.normal(size=len(sums)) * sigma * self.noise).astype(np.int64)
        if self.known is not None:
            answer = self.known[len(self.asked) - 1][0]
        self.given.append((answer, sigma))
        return answer


@pytest.mark.parametrize("levels", [1, 5])
def test_all_queries_together_have_the_asked_for_noise(levels: int) -> None:
    counts, sums = noise_of(levels, 3.0)
    assert levels / counts**2 + 1 / sums**2 == pytest.approx(1 / 3.0**2)


@settings(max_examples=60, deadline=None)
@given(
    number=st.integers(3, 60),
    gone=st.integers(0, 59),
    clusters=st.integers(1, 9),
    noise=st.sampled_from([0.0, 0.01, 0.3]),
    seed=st.integers(0, 50),
)
def test_with_the_same_answers_a_row_changes_the_queries_by_their_noise_s_unit(
    number: int, gone: int, clusters: int, noise: float, seed: int
) -> None:
    rows = unit_rows(number, seed=seed) * 1.5  # too long: they are clipped
    options = {"noise_multiplier": 1.0, "fewest": 1, "seed": seed}
    first = Answers(noise=noise)
    found = private_clusters(rows, clusters, noisy=first, **options)
    kept = torch.arange(number) != gone % number
    # The number of rows is public, so the neighbour has a row that adds nothing in its place.
    lacks = rows * kept[:, None]
    second = Answers(first.given)
    again = private_clusters(lacks, clusters, noisy=second, **options)
    assert torch.equal(found, again)
    cost = 0.0
    for (one, sigma), (other, _) in zip(first.asked, second.asked, strict=True):
        cost += float(np.square(one - other).sum()) / sigma**2
    assert cost <= 2.0  # it moves from a node to another one: twice a row's cost, 1/σ² = 1


def test_without_noise_a_leaf_is_the_direction_of_the_sum_of_its_rows() -> None:
    rows = unit_rows(64, width=16)
    asked = Answers()
    found = private_clusters(rows, 4, noise_multiplier=1.0, fewest=1, seed=3, noisy=asked)
    points = clipped_rows(rows, 1.0)
    sides = halfspaces(points, 4, 3)
    # Slow: part every node with 32 rows or more, drop those with fewer than 8.
    nodes, leaves = [np.arange(64)], []
    for level in range(4):
        children = [n[sides[n, level] == side] for n in nodes for side in (False, True)]
        nodes = [c for c in children if len(c) >= 32 and level < 3]
        leaves += [c for c in children if len(c) >= 8 and (len(c) < 32 or level == 3)]
    expected = [points[leaf].double().sum(dim=0) for leaf in leaves]
    if len(expected) <= 4:
        torch.testing.assert_close(found, normalize(torch.stack(expected), dim=1))
    sums = asked.asked[-1][0].reshape(-1, 16)
    assert np.array_equal(sums, torch.stack(expected).long().numpy())


def test_clusters_that_stand_apart_are_found_through_little_noise() -> None:
    centres = torch.eye(8)[:4]
    rows = normalize(centres.repeat_interleave(64, dim=0) + unit_rows(256) * 0.05, dim=1)
    draws = np.random.default_rng(0)

    def noisy(sums: NDArray[np.int64], sigma: int, purpose: str) -> NDArray[np.int64]:
        drawn: NDArray[np.int64] = sums + np.round(draws.normal(size=len(sums)) * sigma).astype(int)
        return drawn

    best = torch.zeros(4, dtype=torch.float64)
    for seed in range(8):
        found = private_clusters(rows, 4, noise_multiplier=0.2, fewest=2, seed=seed, noisy=noisy)
        torch.testing.assert_close(found.norm(dim=1), torch.ones(len(found)).double())
        best = torch.maximum(best, (found @ centres.double().T).amax(dim=0))
    assert bool((best > 0.9).all()), best


def test_more_leaves_than_clusters_are_clustered() -> None:
    leaves = []

    def many(sums: NDArray[np.int64], sigma: int, purpose: str) -> NDArray[np.int64]:
        if purpose == "leaves":
            leaves.append(len(sums) // 4)
            return sums
        return np.full_like(sums, (300 if purpose == "level 0" else 100) * _COUNT_STEPS)

    found = private_clusters(
        unit_rows(400, width=4), 3, noise_multiplier=1.0, fewest=1, seed=0, noisy=many
    )
    assert leaves == [4]
    assert found.shape == (3, 4)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(3).double())


def test_rows_are_one_leaf_if_noise_leaves_none() -> None:
    def nothing(sums: NDArray[np.int64], sigma: int, purpose: str) -> NDArray[np.int64]:
        return sums if purpose == "leaves" else sums * 0

    rows = unit_rows(20)
    found = private_clusters(rows, 4, noise_multiplier=1.0, fewest=2, seed=0, noisy=nothing)
    expected = normalize(clipped_rows(rows, 1.0).double().sum(dim=0, keepdim=True), dim=1)
    torch.testing.assert_close(found, expected)


def test_fewer_rows_than_a_leaf_has_ask_nothing() -> None:
    asked = Answers()
    found = private_clusters(unit_rows(1), 4, noise_multiplier=1.0, fewest=2, seed=0, noisy=asked)
    assert found.shape == (0, 8)
    assert not asked.asked


def test_noise_is_rounded_up() -> None:
    asked = Answers()
    private_clusters(unit_rows(30), 4, noise_multiplier=0.7, fewest=1, seed=0, noisy=asked)
    counts, sums = noise_of(4, 0.7)
    assert asked.asked[0][1] == math.ceil(counts * _COUNT_STEPS)
    assert asked.asked[-1][1] == math.ceil(sums * UNIT)
