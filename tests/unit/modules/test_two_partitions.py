"""Which of two partitions quadrics tell apart by the wider margin."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.nn.functional import one_hot

from coterie.clustering.lattice import off_lattice, on_lattice
from coterie.clustering.prototypes import grouped_by_means, margin
from coterie.modules.two_partitions import MEMBERS, compared, label_sums


def test_a_margin_is_the_mean_over_clusters_of_means_over_samples() -> None:
    values = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.6, 0.1], [0.5, 0.3, 0.5]]).double()
    members = torch.eye(3).double()[[0, 1, 1]]
    counts = torch.tensor([10.0, 1.0, 3.0]).double()
    assert margin(values, members, counts) == pytest.approx((0.8 + 0.4 / 4) / 2, abs=2**-12)


def test_k_means_counts_samples_of_prototypes() -> None:
    points = on_lattice(torch.tensor([[0.0, 0.0], [0.1, 0.0], [0.9, 0.0], [1.0, 0.0]]))
    (found,) = grouped_by_means(points, torch.ones(4).double(), 2, seed=0)
    assert found[0] == found[1] != found[2] == found[3]
    counts = torch.tensor([1e6, 1e6, 1.0, 1.0]).double()
    (heavy,) = grouped_by_means(points, counts, 2, seed=0)
    assert heavy[0] != heavy[1]


def test_k_means_ends_are_different_and_the_best_comes_first() -> None:
    generator = np.random.default_rng(0)
    points = on_lattice(torch.from_numpy(generator.normal(size=(120, 3))))
    counts = torch.from_numpy(generator.integers(1, 9, 120)).double()
    found = grouped_by_means(points, counts, 6, seed=0, most=4)
    assert found.shape == (4, 120)
    x = off_lattice(points)

    def inertia(labels: torch.Tensor) -> float:
        total = 0.0
        for cluster in range(6):
            own, weights = x[labels == cluster], counts[labels == cluster, None]
            mean = (own * weights).sum(dim=0) / weights.sum()
            total += float((weights * (own - mean).square()).sum())
        return total

    inertias = [inertia(labels) for labels in found]
    assert all(a < b * (1 - 1e-9) for a, b in pairwise(inertias))
    assert torch.equal(found[:1], grouped_by_means(points, counts, 6, seed=0))
    two = on_lattice(torch.tensor([[0.0], [0.1], [1.0]]))
    assert len(grouped_by_means(two, torch.ones(3).double(), 3, seed=0, most=4)) == 1


@pytest.mark.parametrize("wins", ["cut", "means"])
def test_clear_clusters_win_over_those_cut_across(wins: str) -> None:
    generator = np.random.default_rng(0)
    groups = np.repeat(np.arange(4), 60)
    noisy = np.eye(8)[groups] + generator.normal(scale=0.15, size=(240, 8))
    points = on_lattice(torch.from_numpy(noisy / np.linalg.norm(noisy, axis=1, keepdims=True)))
    clear = one_hot(torch.from_numpy(groups), 4).double()
    across = one_hot(torch.from_numpy(generator.permutation(groups)), 4).double()
    cut, means = (clear, across) if wins == "cut" else (across, clear)
    prototypes = {"points": points, "counts": torch.ones(240).double(), MEMBERS: cut}
    by_means = means.argmax(dim=1)
    found = compared(label_sums(points, prototypes, by_means), prototypes, by_means)
    assert (found.of_cut > found.of_means) == (wins == "cut")
    assert (found.agreement > 0.99) == (wins == "cut")
    assert found.weights.shape[1] == 4
