"""Which of two partitions quadrics tell apart by the wider margin."""

import numpy as np
import pytest
import torch
from torch.nn.functional import one_hot

from coterie.clustering.lattice import on_lattice
from coterie.clustering.prototypes import grouped_by_means, margin
from coterie.modules.two_partitions import MEMBERS, compared, label_sums


def test_a_margin_is_the_mean_over_clusters_of_means_over_samples() -> None:
    values = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.6, 0.1], [0.5, 0.3, 0.5]]).double()
    members = torch.eye(3).double()[[0, 1, 1]]
    counts = torch.tensor([10.0, 1.0, 3.0]).double()
    assert margin(values, members, counts) == pytest.approx((0.8 + 0.4 / 4) / 2, abs=2**-12)


def test_k_means_counts_samples_of_prototypes() -> None:
    points = on_lattice(torch.tensor([[0.0, 0.0], [0.1, 0.0], [0.9, 0.0], [1.0, 0.0]]))
    members = grouped_by_means(points, torch.ones(4).double(), 2, seed=0)
    assert torch.equal(members[0], members[1])
    assert torch.equal(members[2], members[3])
    heavy = grouped_by_means(points, torch.tensor([1e6, 1e6, 1.0, 1.0]).double(), 2, seed=0)
    assert not torch.equal(heavy[0], heavy[1])


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
    found = compared(label_sums(points, prototypes, means), prototypes, means)
    assert (found.of_cut > found.of_means) == (wins == "cut")
    assert (found.agreement > 0.99) == (wins == "cut")
    assert found.weights.shape[1] == 4
