"""Prototypes: what it finds, the one message of each client, and whom a prototype stands for."""

import numpy as np
import pytest
import torch

from coterie.clustering.graph import cut, fuzzy_graph, spectrum
from coterie.clustering.lattice import off_lattice, on_lattice
from coterie.clustering.prototypes import cluster_prototypes
from coterie.contract.clusterer import OUTLIER, most_probable
from coterie.errors import ConfigError, DataError, RunError
from coterie.modules.prototypes import Prototypes
from coterie.networks.prototypes import Prototypes as PrototypesHead
from tests.builders.vectors import GROUPS, blobs, clusters, on_vectors, same_partition

FEW = {"prototypes": 8, "neighbours": 4}


def by_group(groups: np.ndarray) -> list[np.ndarray]:
    return [np.flatnonzero(groups == group) for group in range(GROUPS)]


@pytest.mark.parametrize("clusters_given", [GROUPS, None])
def test_it_finds_groups_however_they_are_split(clusters_given: int | None) -> None:
    samples, groups = blobs()
    config = Prototypes.Config(clusters=clusters_given, **FEW)
    everyone = np.random.default_rng(0).permutation(len(samples))
    for parts in (by_group(groups), np.array_split(everyone, 2)):
        ran = on_vectors(config, samples, parts)
        assert same_partition(clusters(ran, samples), groups)


def test_a_prototype_is_the_mean_of_enough_samples_and_is_sent_once() -> None:
    samples, groups = blobs()
    parts = by_group(groups)
    ran = on_vectors(Prototypes.Config(clusters=GROUPS, minimum=4, **FEW), samples, parts)
    assert len(ran.spy.tasks) == GROUPS
    for task, rows in zip(ran.spy.tasks, parts, strict=True):
        assert set(task.slots) == {"encoder"}
        sent = task.outcome.gathered
        assert sent.keys() == {"points", "counts", "scatter"}
        assert task.outcome.up == task.outcome.peer_messages == {}
        assert task.outcome.state is None
        assert len(sent["counts"]) >= 1
        assert float(sent["counts"].min()) >= 4
        own = torch.from_numpy(samples[rows])
        nearest = torch.cdist(own, sent["points"]).argmin(dim=1)
        for number, (point, count) in enumerate(zip(sent["points"], sent["counts"], strict=True)):
            if int((nearest == number).sum()) == int(count):
                torch.testing.assert_close(point, own[nearest == number].mean(dim=0))


def test_more_clusters_than_eigenvalues_are_kept_can_be_asked_for() -> None:
    samples = np.random.default_rng(0).normal(size=(600, 5)).astype(np.float32)
    ran = on_vectors(
        Prototypes.Config(clusters=40, prototypes=100, minimum=2), samples, [np.arange(600)]
    )
    assert len(np.unique(clusters(ran, samples))) == 40
    assert len(ran.state.server.metadata["eigenvalues"]) == 31
    with pytest.raises(DataError, match=r"clusters=\d+: a graph over \d+ prototypes has \d+ eig"):
        cut(spectrum(fuzzy_graph(samples[:80].astype(np.float64), 5), 31), 40, 0)


def test_prototypes_of_equal_samples_take_their_own() -> None:
    """No sample is away from its prototype: without a least temperature all votes are NaN."""
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(9, 4)))
    counts, scatter = torch.full((9,), 6.0).double(), torch.zeros(9).double()
    points = on_lattice(rows)
    found = cluster_prototypes(points, counts, scatter, clusters=3, neighbours=3, seed=0)
    probabilities = PrototypesHead(**found.tensors)(off_lattice(points))
    assert torch.equal(probabilities, found.tensors["members"].float())


def test_fewer_prototypes_than_clusters_are_refused() -> None:
    points, ones = on_lattice(torch.eye(3)[:2].double()), torch.ones(2).double()
    with pytest.raises(RunError, match=r"^Only 2 prototypes have method\.minimum samples or more"):
        cluster_prototypes(points, ones, ones, clusters=2, neighbours=2, seed=0)


def test_the_minimum_of_the_run_holds_too() -> None:
    samples, groups = blobs()
    ran = on_vectors(Prototypes.Config(clusters=2, **FEW), samples, by_group(groups), k_anonymity=9)
    sent = [task.outcome.gathered["counts"] for task in ran.spy.tasks]
    assert min(float(counts.min()) for counts in sent if len(counts)) >= 9


def test_it_refuses_what_cannot_be_cut() -> None:
    samples, groups = blobs()
    with pytest.raises(ConfigError, match=r"method\.clusters=1: there is nothing to tell apart"):
        on_vectors(Prototypes.Config(clusters=1), samples, by_group(groups))
    with pytest.raises(ConfigError, match=r"^method\.minimum: \d+ samples make at most 0"):
        on_vectors(Prototypes.Config(clusters=2, minimum=50, **FEW), samples, by_group(groups))


def scattered() -> tuple[np.ndarray, np.ndarray]:
    """Five dense groups of 200 vectors, and 150 vectors that are of none."""
    drawn = np.random.default_rng(3)
    middles = drawn.uniform(-8, 8, (5, 8))
    groups = np.repeat([*range(5), OUTLIER], [200] * 5 + [150])
    dense = middles[groups[:1000]] + 0.6 * drawn.normal(size=(1000, 8))
    return np.concatenate([dense, drawn.uniform(-10, 10, (150, 8))]).astype(np.float32), groups


def test_hdbscan_finds_dense_groups_and_their_number_and_leaves_the_rest_out() -> None:
    samples, groups = scattered()
    config = Prototypes.Config(clustering="hdbscan")
    everyone = np.random.default_rng(0).permutation(len(samples))
    for parts in (np.array_split(everyone, 4), [np.flatnonzero(groups == g) for g in range(-1, 5)]):
        ran = on_vectors(config, samples, parts)
        model = ran.spy.model_for(ran.state.server, None)
        found, _ = most_probable(model(torch.from_numpy(samples)).probabilities, model.outliers)
        assert (found[groups == OUTLIER] == OUTLIER).float().mean() > 0.8
        inside = groups != OUTLIER
        kept = found[inside] != OUTLIER
        assert kept.float().mean() > 0.97
        assert same_partition(found[inside][kept].numpy(), groups[inside][kept.numpy()])


def test_hdbscan_refuses_a_number_of_clusters_and_the_cut_a_size_of_them() -> None:
    with pytest.raises(ConfigError, match="HDBSCAN finds their number"):
        Prototypes.Config(clustering="hdbscan", clusters=3)
    with pytest.raises(ConfigError, match="min_cluster_size: it needs clustering=hdbscan"):
        Prototypes.Config(min_cluster_size=9)
    samples, groups = blobs()
    with pytest.raises(ConfigError, match=r"hdbscan: under privacy\.dp there are too few"):
        on_vectors(Prototypes.Config(clustering="hdbscan"), samples, by_group(groups), clip=1.0)
