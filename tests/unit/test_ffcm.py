"""FFCM: its identities with fuzzy c-means of all data, and its messages."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.clustering.fuzzy import fuzzy_means, memberships
from modules.ffcm import FFCM, weighted_means
from tests.small_federation import SIZES, Federated, federate, tiny_workload
from tests.unit.test_kfed import GROUPS, blobs, clusters, on_vectors, same_partition

EXACT = {"joined_by": "mean", "support": "powers", "iterations": 1}


def config(**changes: Any) -> FFCM.Config:
    return FFCM.Config(**{"clusters": 4, "rounds": 3, "fuzziness": 1.3} | changes)


def centroids(server: Any) -> Tensor:
    found: Tensor = server.slots["centroids"]["centroids"]
    return found


def test_a_round_of_one_iteration_is_one_of_all_data_together() -> None:
    ran = federate(tiny_workload(config(**EXACT)))
    samples = torch.from_numpy(ran.backend._worker.samples["train"])
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


@pytest.fixture(scope="module")
def ran() -> Federated:
    return federate(tiny_workload(config()))


def test_a_client_sends_centroids_and_supports_and_keeps_nothing(ran: Federated) -> None:
    assert [commit.phase.name for commit in ran.commits] == ["centroids"] + 3 * ["clustering"]
    for turn in ran.spy.turns:
        begins = turn.phase.name == "centroids"
        assert set(turn.slots) == ({"encoder"} if begins else {"encoder", "centroids"})
        shapes = {k: tuple(v.shape) for k, v in turn.outcome.records.items()}
        assert shapes == {"centroids": (4, 6), "supports": (4,)}
        assert turn.outcome.up == turn.outcome.mail == {}
        assert turn.outcome.state is None
        assert set(turn.outcome.metrics) == {"loss"}
    # The encoder goes down once, the centroids in each round: float64 in this run.
    encoder = sum(value.nbytes for value in ran.start.slots["encoder"].values())
    downs = [commit.traffic.down for commit in ran.commits]
    assert downs[0] == {"encoder": encoder * len(SIZES)}
    assert downs[1:] == 3 * [{"centroids": 4 * 6 * 8 * len(SIZES)}]


@pytest.mark.parametrize("support", ["memberships", "powers"])
def test_supports_are_the_sums_over_the_clients_own_samples(support: str) -> None:
    samples, _ = blobs()
    parts = np.array_split(np.arange(len(samples)), 3)
    ran = on_vectors(config(support=support, iterations=1), samples, parts)
    for turn in ran.spy.turns[3:]:
        own = turn.outcome.records
        rows = torch.from_numpy(samples[parts[turn.client.id]])
        u = memberships(rows, turn.slots["centroids"]["centroids"], 1.3)
        expected = (u if support == "memberships" else u**1.3).sum(dim=0)
        torch.testing.assert_close(own["supports"], expected)
        if support == "memberships":
            assert float(own["supports"].sum()) == pytest.approx(len(rows))


def test_predictions_are_memberships(ran: Federated) -> None:
    model = ran.spy.model_for(ran.state.server, None)
    samples = torch.from_numpy(ran.backend._worker.samples["train"])
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
