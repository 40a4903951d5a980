"""Clusters for models without a head: k-means, or the cut of a graph over prototypes."""

import numpy as np
import torch
from sklearn.metrics import adjusted_rand_score

from coterie.contract.clusterer import Prediction
from coterie.evaluation.cluster_assignment import assign_clusters
from coterie.networks.prototypes import UnitPrototypes


def arcs() -> tuple[torch.Tensor, np.ndarray]:
    """A long arc and a short one, of directions whose lengths say nothing."""
    generator = np.random.default_rng(0)
    angles = np.deg2rad(np.r_[generator.uniform(0, 200, 1500), generator.uniform(240, 270, 500)])
    lengths = generator.uniform(0.1, 900.0, (2000, 1))
    points = lengths * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return torch.from_numpy(points).float(), np.repeat([0, 1], [1500, 500])


def test_prototypes_follow_a_shape_that_k_means_cuts() -> None:
    points, groups = arcs()
    without = Prediction(points, None)
    found, confidence, head = assign_clusters(without, 2, 0, "prototypes")
    assert adjusted_rand_score(groups, found) > 0.99
    assert isinstance(head, UnitPrototypes)
    assert confidence.min() >= 0.5
    by_means, _, _ = assign_clusters(without, 2, 0)
    assert adjusted_rand_score(groups, by_means) < 0.5
    again = head(points).max(dim=1)
    np.testing.assert_array_equal(again.indices.numpy(), found)


def test_a_models_own_head_decides_whatever_is_asked_for() -> None:
    probabilities = torch.tensor([[0.2, 0.8], [0.9, 0.1]])
    found, confidence, head = assign_clusters(
        Prediction(torch.zeros(2, 3), probabilities), 2, 0, "prototypes"
    )
    assert found.tolist() == [1, 0]
    assert confidence.tolist() == [np.float32(0.8), np.float32(0.9)]
    assert head is None


def test_too_few_samples_for_a_graph_are_clustered_by_k_means() -> None:
    points = torch.from_numpy(np.random.default_rng(0).normal(size=(20, 3))).float()
    found, _, head = assign_clusters(Prediction(points, None), 5, 0, "prototypes")
    assert len(set(found.tolist())) == 5
    assert not isinstance(head, UnitPrototypes)
