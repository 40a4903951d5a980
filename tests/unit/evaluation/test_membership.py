"""Membership inference: what is memorised is found, what is not is not, and by known formulas."""

from itertools import combinations

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.nn.functional import cosine_similarity, cross_entropy

from coterie.clustering.lattice import on_lattice
from coterie.contract.seeds import seeded
from coterie.evaluation.membership import (
    VIEWS,
    centroid_scores,
    loss_scores,
    membership,
    view_scores,
)
from coterie.networks.heads import Centroids, UnitLength
from coterie.networks.prototypes import UnitPrototypes


def drawn(seed, count=50, classes=5):
    """Noise images (count, 1, 8, 8) and labels that have nothing to do with them."""
    rng = np.random.default_rng(seed)
    images = torch.from_numpy(rng.random((count, 1, 8, 8), dtype=np.float32))
    return images, rng.integers(classes, size=count)


def overfitted(images, labels, classes=5):
    with seeded(0):
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, classes))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(100):
            optimizer.zero_grad()
            cross_entropy(model(images), torch.from_numpy(labels)).backward()
            optimizer.step()
    return nn.Sequential(model, nn.Softmax(dim=1)).eval()


def losses(model, images, labels):
    with torch.no_grad():
        return loss_scores(model(images), labels)


def test_an_overfitted_model_is_found_and_one_of_other_data_is_not():
    members, others = drawn(1), drawn(2)
    found = membership(*(losses(overfitted(*members), *each) for each in (members, others)), seed=3)
    assert found.auc_interval[0] > 0.5
    assert found.auc > 0.9
    assert "It tells training samples from others" in found.finding
    elsewhere = overfitted(*drawn(4))
    not_found = membership(*(losses(elsewhere, *each) for each in (members, others)), seed=3)
    low, high = not_found.auc_interval
    assert low < 0.5 < high
    assert "does not tell" in not_found.finding


def test_the_same_seed_gives_the_same_numbers():
    rng = np.random.default_rng(0)
    scores = rng.normal(0.3, 1, 300), rng.normal(0, 1, 200)
    assert membership(*scores, seed=1) == membership(*scores, seed=1)
    assert membership(*scores, seed=1) != membership(*scores, seed=2)


def test_area_and_rate_are_scikit_learns_and_the_intervals_hold_them():
    rng = np.random.default_rng(0)
    members, others = rng.normal(1, 1, 400).round(1), rng.normal(0, 1, 300).round(1)
    found = membership(members, others, seed=1)
    truth = np.repeat([1, 0], [400, 300])
    assert found.auc == roc_auc_score(truth, np.concatenate([members, others]))
    assert found.auc_interval[0] < found.auc < found.auc_interval[1]
    # Of 300 others at most 3 may be taken for members.
    limit = np.sort(others)[-4]
    assert found.tpr == pytest.approx((members > limit).mean())
    assert found.tpr_interval[0] <= found.tpr <= found.tpr_interval[1]


def test_the_interval_of_two_equal_kinds_holds_one_half_in_most_draws():
    rng, held = np.random.default_rng(0), 0
    for seed in range(40):
        found = membership(rng.normal(size=80), rng.normal(size=90), seed)
        held += found.auc_interval[0] <= 0.5 <= found.auc_interval[1]
    assert held >= 35


def test_constant_scores_tell_nothing():
    found = membership(np.ones(60), np.ones(50), seed=0)
    assert (found.auc, found.auc_interval, found.tpr) == (0.5, (0.5, 0.5), 0.0)
    assert "does not tell" in found.finding


def test_centroid_scores_are_negative_distances():
    points, seen = torch.tensor([[0.0, 1.0], [3.0, 0.0]]), torch.tensor([[0.0, 3.0], [2.0, 0.0]])
    assert centroid_scores(Centroids(points), seen).tolist() == [-2.0, -1.0]
    unit = nn.Sequential(UnitLength(), Centroids(torch.tensor([[0.0, 1.0], [1.0, 0.0]])))
    assert centroid_scores(unit, seen).tolist() == [0.0, 0.0]
    prototypes = UnitPrototypes(
        on_lattice(torch.tensor([[0.0, 1.0]])), torch.ones(1), torch.ones(1, 1), torch.ones(())
    )
    assert centroid_scores(prototypes, seen)[0] == 0.0
    assert centroid_scores(prototypes, seen)[1] == pytest.approx(-(2**0.5))
    assert centroid_scores(None, seen) is None
    assert centroid_scores(nn.Linear(2, 2), seen) is None


def test_view_scores_are_mean_cosines_over_all_pairs_of_views():
    images, _ = drawn(0, count=300)
    encoder, seen = nn.Flatten(), []

    class Noise(nn.Module):
        def forward(self, samples):
            view = samples + 0.3 * torch.randn_like(samples)
            seen.append(view.flatten(1).double())
            return view

    found = view_scores(encoder, Noise(), images, seed=5)
    first, second = seen[:VIEWS], seen[VIEWS:]  # two blocks of samples
    means = [
        np.mean([cosine_similarity(a, b, dim=1).numpy() for a, b in combinations(block, 2)], axis=0)
        for block in (first, second)
    ]
    assert np.allclose(found, np.concatenate(means), atol=1e-6)
    assert (view_scores(encoder, Noise(), images, seed=5) == found).all()
