"""FFCM: its identities with fuzzy c-means of all data, and its messages."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.clustering.fuzzy import fuzzy_means, memberships
from coterie.clustering.kmeans import kmeans
from coterie.clustering.one_shot import projected_kmeans
from coterie.contract.seeds import derive_seed
from coterie.errors import RunError
from coterie.modules.ffcm import FFCM, weighted_means
from tests.builders.federation import SIZES, Federated, federate, tiny_task, tiny_workload
from tests.builders.vectors import GROUPS, blobs, clusters, on_vectors, same_partition

EXACT = {"joined_by": "mean", "support": "powers", "iterations": 1}


def config(**changes: Any) -> FFCM.Config:
    return FFCM.Config(**{"clusters": 4, "rounds": 3, "fuzziness": 1.3} | changes)


def centroids(server: Any) -> Tensor:
    found: Tensor = server.slots["centroids"]["centroids"]
    return found


def test_a_round_of_one_iteration_is_one_of_all_data_together() -> None:
    ran = federate(tiny_workload(config(**EXACT)))
    samples = torch.from_numpy(ran.backend.worker.samples["train"])
    together = ran.spy.model_for(ran.start, None).eval()(samples).embedding
    served = [step for step in ran.spy.served if step[1].name == "clustering"]
    assert len(served) == 3
    for before, _, _, _, after in served:
        whole = fuzzy_means(together, centroids(before), fuzziness=1.3, iterations=1)
        assert centroids(after).dtype == torch.float64
        torch.testing.assert_close(centroids(after), whole.centroids, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("joined_by", "iterations"), [("mean", 1), ("kmeans", 5)])
@pytest.mark.parametrize("spread", ["iid", "two groups each"])
def test_well_parted_groups_are_found(joined_by: str, iterations: int, spread: str) -> None:
    samples, groups = blobs()
    mixed = np.random.default_rng(0).permutation(len(samples))
    order = mixed if spread == "iid" else np.arange(len(samples))
    parts = [np.sort(part) for part in np.array_split(order, 3)]
    given = config(clusters=GROUPS, joined_by=joined_by, iterations=iterations)
    assert same_partition(clusters(on_vectors(given, samples, parts), samples), groups)


def slow_means(every: list[Tensor], weights: list[Tensor], before: Tensor) -> Tensor:
    """c_j = Σ_k s_kj c_kj / Σ_k s_kj, over clients k."""
    clients = list(zip(weights, every, strict=True))
    rows = []
    for j, kept in enumerate(before.tolist()):
        total = sum(float(s[j]) for s, _ in clients)
        sums = [sum(float(s[j]) * float(c[j, d]) for s, c in clients) for d in range(len(kept))]
        rows.append([value / total for value in sums] if total else kept)
    return torch.tensor(rows, dtype=torch.float64)


def test_the_mean_is_weighted_by_supports_and_spares_what_nobody_has() -> None:
    generator = torch.Generator().manual_seed(0)
    every = [torch.randn(4, 5, generator=generator, dtype=torch.float64) for _ in range(3)]
    weights = [torch.rand(4, generator=generator, dtype=torch.float64) for _ in range(3)]
    for weight in weights:
        weight[2] = 0
    before = torch.randn(4, 5, generator=generator, dtype=torch.float64)
    found = weighted_means(torch.cat(every), torch.cat(weights), before)
    torch.testing.assert_close(found, slow_means(every, weights, before))
    assert torch.equal(found[2], before[2])


def answers(seed: int, clients: int = 3) -> dict[int, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return {
        client: {
            "centroids": torch.randn(4, 6, generator=generator),
            "supports": torch.rand(4, generator=generator, dtype=torch.float64) * 100,
        }
        for client in range(clients)
    }


def test_the_server_runs_weighted_k_means_over_all_centroids_from_the_last_ones() -> None:
    method = FFCM(config(restarts=3), tiny_task())
    server = method.init(dict(enumerate(SIZES)), 7)
    for gathered in (answers(0), answers(1)):
        phase = method.next(server)
        assert phase is not None
        after = method.server(server, phase, {}, gathered)
        every = torch.cat([record["centroids"] for record in gathered.values()])
        weights = torch.cat([record["supports"] for record in gathered.values()])
        seed, before = derive_seed(7, "kmeans", 1, phase.step), server.slots.get("centroids")
        given: dict[str, Any] = {"restarts": 3}
        if before is not None:  # among the others, at a weight that tells where there is no other
            every = torch.cat([before["centroids"], every])
            weights = torch.cat([torch.full((4,), 1e-6, dtype=torch.float64), weights])
            given = {"init": before["centroids"]}
        expected = kmeans(every, 4, seed=seed, weights=weights, **given).centroids
        assert torch.equal(centroids(after), expected)
        assert not torch.equal(expected, kmeans(every, 4, seed=seed, **given).centroids)
        server = after


@pytest.mark.parametrize("joined_by", ["mean", "kmeans"])
def test_a_cluster_that_nobody_of_a_round_has_stays(joined_by: str) -> None:
    method = FFCM(config(joined_by=joined_by), tiny_task())
    server = method.init(dict(enumerate(SIZES)), 7)
    begin = method.next(server)
    assert begin is not None
    server = method.server(server, begin, {}, answers(0))
    phase, gathered = method.next(server), answers(1, clients=1)
    assert phase is not None
    gathered[0]["centroids"] = centroids(server) + 0.01
    gathered[0]["supports"][2] = 0
    after = centroids(method.server(server, phase, {}, gathered))
    torch.testing.assert_close(after[2], centroids(server)[2])
    torch.testing.assert_close(after[[0, 1, 3]], centroids(server)[[0, 1, 3]] + 0.01)


def test_clients_of_a_round_do_not_make_the_others_clusters_forgotten() -> None:
    samples, groups = blobs()
    parts = [np.flatnonzero(groups == group) for group in range(GROUPS)]
    given = config(clusters=GROUPS, rounds=8, participation=0.5, fuzziness=1.1)
    ran = on_vectors(given, samples, parts)
    seen = {task.client.id for task in ran.spy.tasks if task.phase.name == "centroids"}
    found = clusters(ran, samples)
    assert len(seen) == 3
    assert len({int(np.bincount(found[part]).argmax()) for part in parts}) > 3


@pytest.fixture(scope="module")
def ran() -> Federated:
    return federate(tiny_workload(config()))


def test_a_client_sends_centroids_and_supports_and_keeps_nothing(ran: Federated) -> None:
    assert [commit.phase.name for commit in ran.commits] == ["centroids"] + 3 * ["clustering"]
    for task in ran.spy.tasks:
        begins = task.phase.name == "centroids"
        assert set(task.slots) == ({"encoder"} if begins else {"encoder", "centroids"})
        shapes = {k: tuple(v.shape) for k, v in task.outcome.gathered.items()}
        assert shapes == {"centroids": (4, 6), "supports": (4,)}
        assert task.outcome.up == task.outcome.peer_messages == {}
        assert task.outcome.state is None
        assert set(task.outcome.metrics) == {"loss"}
    # The encoder goes down once, the centroids in each round: float64 in this run.
    encoder = sum(value.nbytes for value in ran.start.slots["encoder"].values())
    downs = [commit.traffic.down for commit in ran.commits]
    assert downs[0] == {"encoder": encoder * len(SIZES)}
    assert downs[1:] == 3 * [{"centroids": 4 * 6 * 8 * len(SIZES)}]


@pytest.mark.parametrize("support", ["memberships", "powers"])
@pytest.mark.parametrize(("k_anonymity", "far"), [(1, 1), (2, 1), (3, 2), (5, 4)])
def test_a_centroid_that_few_samples_make_is_not_sent(k_anonymity, far, support) -> None:
    samples = blobs()[0]
    alone = np.full((far, samples.shape[1]), 1e3, samples.dtype) + np.arange(far)[:, None]
    samples = np.concatenate([samples, alone])
    parts = [np.arange(0, 40), np.arange(40, len(samples))]
    given = config(support=support)
    ran = on_vectors(given, samples, parts, k_anonymity=k_anonymity)
    sent = [task.outcome for task in ran.spy.tasks if task.client.id == 1]
    for outcome in sent:
        seen = (outcome.gathered["centroids"] > 500).any()
        assert bool(seen) == (k_anonymity == 1)
        assert bool((outcome.gathered["supports"] == 0).any()) == (k_anonymity > 1)
        assert (outcome.note != "") == (k_anonymity > 1)
        assert outcome.smallest["centroids"] >= k_anonymity


def test_a_run_without_enough_centroids_to_begin_with_says_so() -> None:
    near = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    samples = np.concatenate([near, 1e3 * np.eye(6, dtype=np.float32)[:3]])
    with pytest.raises(RunError, match=r"^method\.clusters=4: clients sent only 1 centroids; "):
        on_vectors(config(), samples, [np.arange(8)], k_anonymity=2)


@pytest.mark.parametrize("support", ["memberships", "powers"])
def test_supports_are_the_sums_over_the_clients_own_samples(support: str) -> None:
    samples, _ = blobs()
    parts = np.array_split(np.arange(len(samples)), 3)
    ran = on_vectors(config(support=support, iterations=1), samples, parts)
    for task in ran.spy.tasks[3:]:
        own = task.outcome.gathered
        rows = torch.from_numpy(samples[parts[task.client.id]])
        u = memberships(rows, task.slots["centroids"]["centroids"], 1.3)
        expected = (u if support == "memberships" else u**1.3).sum(dim=0)
        torch.testing.assert_close(own["supports"], expected)
        if support == "memberships":
            assert float(own["supports"].sum()) == pytest.approx(len(rows))


def test_as_many_iterations_as_asked_for_from_the_clients_own_k_means() -> None:
    samples = blobs()[0]
    ran = on_vectors(config(iterations=3, restarts=2), samples, [np.arange(len(samples))])
    begin, first, *_ = ran.spy.tasks
    rows, seed = torch.from_numpy(samples), derive_seed(begin.client.seed, "kmeans")
    start = projected_kmeans(rows, 4, seed=seed, restarts=2).centroids
    own = fuzzy_means(rows, start, fuzziness=1.3, iterations=3).centroids
    assert torch.equal(begin.outcome.gathered["centroids"], own)
    slot = first.slots["centroids"]["centroids"]
    again = fuzzy_means(rows, slot, fuzziness=1.3, iterations=3).centroids
    assert torch.equal(first.outcome.gathered["centroids"], again)


def test_predictions_are_memberships(ran: Federated) -> None:
    model = ran.spy.model_for(ran.state.server, None)
    samples = torch.from_numpy(ran.backend.worker.samples["train"])
    found = model(samples)
    expected = memberships(found.embedding, centroids(ran.state.server).float(), 1.3).float()
    assert torch.equal(found.probabilities, expected)
    assert ran.spy.model_for(ran.start, None).head is None


def test_the_last_round_of_a_run_that_nobody_began_has_no_clusters() -> None:
    method = FFCM(config(), tiny_workload(config()).task)
    server = method.init({0: 9, 1: 9}, 0)
    first = method.next(server)
    assert first is not None
    assert (first.name, first.ends_round) == ("centroids", False)
    again = method.next(server.advance(first, {}))
    assert again is not None
    assert (again.name, again.step, again.ends_round) == ("centroids", 1, True)
