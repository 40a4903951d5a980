"""Exact federated k-means: Lloyd's own result, its messages, and what it refuses."""

import numpy as np
import pytest
import torch

from coterie.clustering.lattice import nearest, off_lattice, on_lattice
from coterie.commands.compose import compose
from coterie.errors import ConfigError
from coterie.modules.kmeans import KMeans
from tests.builders.vectors import GROUPS, blobs, clusters, on_vectors, same_partition


def test_it_finds_groups_that_no_client_has_more_than_one_of() -> None:
    samples, groups = blobs()
    parts = [np.flatnonzero(groups == group) for group in range(GROUPS)]
    ran = on_vectors(KMeans.Config(clusters=GROUPS), samples, parts)
    assert same_partition(clusters(ran, samples), groups)


def test_it_ends_at_a_fixed_point_of_lloyds_step_on_all_samples() -> None:
    samples, _ = blobs()
    ran = on_vectors(
        KMeans.Config(clusters=7, restarts=4), samples, np.array_split(np.arange(len(samples)), 3)
    )
    best, x = ran.state.server.slots["centroids"]["best"], on_lattice(torch.from_numpy(samples))
    assigned, values = nearest(x, best), off_lattice(x)
    means = torch.stack([values[assigned == cluster].mean(dim=0) for cluster in range(7)])
    assert torch.equal(on_lattice(means), best)
    inertia = float((values - off_lattice(best)[assigned]).square().sum())
    assert ran.state.server.metadata["inertia"] == pytest.approx(inertia, rel=1e-9)
    assert ran.state.server.metadata["settled"] is True


def test_more_restarts_never_end_worse() -> None:
    samples, _ = blobs()
    parts = np.array_split(np.arange(len(samples)), 2)
    few, many = (on_vectors(KMeans.Config(clusters=6, restarts=n), samples, parts) for n in (1, 8))
    assert many.state.server.metadata["inertia"] <= few.state.server.metadata["inertia"] + 1e-9


def test_the_loss_is_that_of_the_best_start_over_all_clients_and_never_rises() -> None:
    samples = np.random.default_rng(2).uniform(size=(200, 4)).astype(np.float32)
    parts = [np.arange(20), np.arange(20, len(samples))]
    ran = on_vectors(KMeans.Config(clusters=7, restarts=9), samples, parts)
    first, *losses = [done.measured.get("loss") for done in ran.commits]
    assert first is None  # of the moments
    assert losses == sorted(losses, reverse=True)
    best, x = ran.state.server.slots["centroids"]["best"], on_lattice(torch.from_numpy(samples))
    away = off_lattice(x) - off_lattice(best)[nearest(x, best)]
    assert losses[-1] == pytest.approx(float(away.square().sum()) / len(samples), rel=1e-9)
    assert all(not task.outcome.metrics for task in ran.spy.tasks)


def test_data_up_to_the_lattices_end_is_summed_to_the_same_bits() -> None:
    samples = np.random.default_rng(0).uniform(-512, 512, (400, 32)).astype(np.float32)
    config = KMeans.Config(clusters=4, restarts=2, iterations=5)
    splits = [np.array_split(np.arange(400), clients) for clients in (2, 40)]
    few, many = (on_vectors(config, samples, parts).state for parts in splits)
    assert (few.failures, many.failures) == ([], [])
    one, other = (state.server.slots["centroids"]["best"] for state in (few, many))
    assert torch.equal(one, other)


def test_a_client_sends_sums_only() -> None:
    samples, _ = blobs()
    ran = on_vectors(KMeans.Config(clusters=3, restarts=2), samples, [np.arange(len(samples))])
    first, *others = ran.spy.tasks
    shapes = {k: tuple(v.shape) for k, v in first.outcome.up["moments"].tensors.items()}
    assert shapes == {"count": (), "total": (30,), "products": (30, 30)}
    for task in others:
        assert set(task.outcome.up) == {"sums"}
        assert task.outcome.up["sums"].tensors["sums"].shape[1:] == (3, 32)
        assert not task.outcome.gathered
        assert task.outcome.state is None


@pytest.mark.parametrize("given", ["aggregation.rule=median", "aggregation.optimizer=adam"])
def test_sums_are_added_and_nothing_else(given: str) -> None:
    with pytest.raises(ConfigError, match=r"which have to add up; use (weighted|none)\."):
        compose("experiment=kmeans_digits", given)
