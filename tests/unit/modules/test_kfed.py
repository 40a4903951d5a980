"""k-FED: what it finds, what it refuses, and the one message of each client."""

from typing import Any

import numpy as np
import pytest
import torch

from coterie.clustering.kmeans import counted_means, kmeans
from coterie.clustering.one_shot import projected_kmeans
from coterie.contract.seeds import derive_seed
from coterie.errors import ConfigError, RunError
from coterie.modules.kfed import KFED
from tests.builders.federation import SIZES, Federated, federate, tiny_task, tiny_workload
from tests.builders.vectors import (
    GROUPS,
    blobs,
    clusters,
    on_vectors,
    same_partition,
    slow_farthest,
)


@pytest.mark.parametrize("local", [1, 2, 3])
def test_clients_with_few_of_the_groups_find_all_of_them_together(local: int) -> None:
    samples, groups = blobs()
    parts = [
        np.flatnonzero(np.isin(groups, [(client + i) % GROUPS for i in range(local)]))
        for client in range(GROUPS)
    ]
    ran = on_vectors(KFED.Config(clusters=GROUPS, local_clusters=local), samples, parts)
    assert same_partition(clusters(ran, samples), groups)


def test_one_client_alone_has_its_own_centroids() -> None:
    samples, _ = blobs()
    ran = on_vectors(KFED.Config(clusters=4), samples, [np.arange(len(samples))])
    (task,) = ran.spy.tasks
    seed = derive_seed(task.client.seed, "kmeans")
    own = projected_kmeans(torch.from_numpy(samples), 4, seed=seed, restarts=10)
    means, _ = counted_means(torch.from_numpy(samples), own)
    assert torch.equal(task.outcome.gathered["centroids"], means)
    assert torch.equal(ran.state.server.slots["centroids"]["centroids"], means)
    assert task.outcome.metrics == {"loss": pytest.approx(own.inertia / len(samples))}


@pytest.fixture(scope="module")
def ran() -> Federated:
    return federate(tiny_workload(KFED.Config(clusters=5, local_clusters=3)))


def test_a_client_sends_its_centroids_once_and_keeps_nothing(ran: Federated) -> None:
    assert len(ran.spy.tasks) == len(SIZES)
    for task in ran.spy.tasks:
        assert set(task.slots) == {"encoder"}
        assert {k: tuple(v.shape) for k, v in task.outcome.gathered.items()} == {
            "centroids": (3, 6)
        }
        assert task.outcome.up == task.outcome.peer_messages == {}
        assert task.outcome.state is None
        assert set(task.outcome.metrics) == {"loss"}
    assert ran.kept == {}
    (commit,) = ran.commits
    # Three centroids of six float32, and the loss in float64.
    assert sum(commit.traffic.up.values()) == len(SIZES) * (3 * 6 * 4 + 8)


@pytest.mark.parametrize(("k_anonymity", "sent"), [(1, 3), (2, 2), (3, 1)])
def test_centroids_of_too_few_samples_are_not_sent(k_anonymity: int, sent: int) -> None:
    few = np.array([[0, 0], [0, 0.1], [0.1, 0], [9, 0], [9, 0.1], [0, 9]], np.float32)
    samples = np.concatenate([few, few, few + 0.05])
    parts = [np.arange(6), np.arange(6, 18)]
    ran = on_vectors(KFED.Config(clusters=3), samples, parts, k_anonymity=k_anonymity)
    (first,) = [task for task in ran.spy.tasks if task.client.id == 0]
    assert len(first.outcome.gathered["centroids"]) == sent
    assert ("privacy.k_anonymity" in first.outcome.note) is (sent < 3)
    assert first.outcome.smallest["centroids"] >= k_anonymity


def test_raw_samples_need_no_encoder_to_be_sent() -> None:
    samples, _ = blobs()
    ran = on_vectors(KFED.Config(clusters=3), samples, np.array_split(np.arange(120), 4))
    assert ran.state.ledger.down == 0
    assert ran.state.ledger.up == 4 * (3 * 30 * 4 + 8)


def test_the_encoder_is_not_changed(ran: Federated) -> None:
    before, after = ran.start.slots["encoder"], ran.state.server.slots["encoder"]
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert len(before) == len(after) > 0


def test_there_are_no_clusters_before_the_clients_have_answered(ran: Federated) -> None:
    assert ran.spy.model_for(ran.start, None).head is None


@pytest.mark.parametrize(("sent", "first"), [(3, [0, 1, 2]), (1, [0]), (0, [0])])
def test_the_server_runs_k_means_from_one_clients_centroids_and_the_farthest_others(
    sent: int, first: list[int]
) -> None:
    method = KFED(KFED.Config(clusters=7, local_clusters=3), tiny_task())
    server = method.init(dict.fromkeys(range(5), 20), 0)
    generator = torch.Generator().manual_seed(1)
    gathered = {i: {"centroids": torch.randn(3, 6, generator=generator)} for i in range(5)}
    gathered[0]["centroids"] = gathered[0]["centroids"][:sent]
    phase = method.next(server)
    assert phase is not None
    after = method.server(server, phase, {}, gathered)
    every = torch.cat([record["centroids"] for record in gathered.values()])
    start = every[slow_farthest(every.tolist(), 7, first)]
    expected = kmeans(every, 7, seed=0, init=start).centroids
    assert torch.equal(after.slots["centroids"]["centroids"], expected)
    assert not torch.equal(expected, kmeans(every, 7, seed=0, restarts=1).centroids)
    assert method.next(after) is None


def test_a_share_of_the_clients_takes_part() -> None:
    ran = federate(tiny_workload(KFED.Config(clusters=5, local_clusters=3, participation=0.6)))
    assert len(ran.spy.tasks) == 2


def test_too_few_that_answer_end_the_run_with_the_reason() -> None:
    method = KFED(KFED.Config(clusters=5, local_clusters=2), tiny_task())
    server = method.init(dict.fromkeys(range(3), 9), 0)
    phase = method.next(server)
    assert phase is not None
    with pytest.raises(RunError, match="only 1 clients answered, with 2 centroids"):
        method.server(server, phase, {}, {0: {"centroids": torch.rand(2, 6)}})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clusters": 9, "local_clusters": 2}, "3 clients together find fewer than 9 clusters"),
        (
            {"clusters": 6, "local_clusters": 2, "participation": 0.5},
            "method.local_clusters=2: 2 clients together find fewer than 6",
        ),
        ({"clusters": 3, "local_clusters": 4}, "local_clusters=4: there are 3 clusters in all"),
    ],
)
def test_what_cannot_be_found_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        KFED(KFED.Config(**changes), tiny_task()).init(dict(enumerate(SIZES)), 0)
