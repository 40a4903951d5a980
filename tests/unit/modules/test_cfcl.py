"""The identities of CF-CL: what any correct implementation satisfies, on a tiny federation."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.contract.client import ClientData
from coterie.peers.clusters import squared_distances
from modules.cfcl import CFCL, weight_unit
from modules.cfcl_device import Device
from tests.small_cfcl import encoder, encoders, ran, short, turns
from tests.small_federation import SIZES, Federated, same_bits, slow_mean, tiny_task, tiny_workload


@pytest.fixture(scope="module")
def alone() -> Federated:
    return ran(exchange="none")


@pytest.fixture(scope="module")
def explicit() -> Federated:
    return ran(exchange="explicit")


@pytest.fixture(scope="module")
def implicit() -> Federated:
    return ran(exchange="implicit")


@pytest.mark.parametrize("exchange", ["explicit", "implicit", "uniform", "kmeans", "bulk"])
def test_a_budget_of_nothing_is_fedavg_to_the_bit(alone: Federated, exchange: str) -> None:
    idle = ran(exchange=exchange, budget=0)
    assert same_bits(encoder(idle), encoder(alone))
    others = [turn.outcome.mail for turn in turns(idle, "pull")]
    assert others == [{}] * len(others)


def test_without_the_regularisers_weight_implicit_is_fedavg_to_the_bit(
    alone: Federated, implicit: Federated
) -> None:
    weightless = ran(exchange="implicit", regulariser=0.0)
    assert same_bits(encoder(weightless), encoder(alone))
    assert any(turn.outcome.mail for turn in turns(weightless, "pull"))
    assert not same_bits(encoder(implicit), encoder(alone))


def test_what_is_exchanged_changes_the_result(
    alone: Federated, explicit: Federated, implicit: Federated
) -> None:
    assert not same_bits(encoder(explicit), encoder(alone))
    assert not same_bits(encoder(implicit), encoder(explicit))


def multiset(samples: Tensor) -> Counter[bytes]:
    return Counter(sample.numpy().tobytes() for sample in samples)


class Sets:
    """What each device trained on, turn after turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[int, ClientData]] = []
        plain = CFCL._local

        def local(method: CFCL, client: Any, device: Device, event: Any) -> Any:
            given = plain(method, client, device, event)
            self.seen.append((client.id, given.data))
            return given

        monkeypatch.setattr(CFCL, "_local", local)


@pytest.mark.parametrize("exchange", ["explicit", "uniform", "kmeans", "bulk"])
def test_the_training_set_is_the_own_one_and_what_was_pulled(
    exchange: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = Sets(monkeypatch)
    done = ran(exchange=exchange)
    own = [multiset(torch.from_numpy(done.backend._worker.samples["train"][rows]))
           for rows in done.backend._worker.parts]  # fmt: skip
    pulled: dict[int, dict[int, Counter[bytes]]] = {}
    seen = iter(sets.seen)
    for turn in done.spy.turns:
        if turn.phase.name == "pull":  # everyone purges at the same time
            pulled = pulled if turn.client.id else {}
            for recipient, letter in turn.outcome.mail.items():
                sent = multiset(letter["samples"])
                assert sent <= own[turn.client.id], "foreign samples were passed on"
                pulled.setdefault(recipient, {})[turn.client.id] = sent
        elif turn.phase.name == "train":
            client, data = next(seen)
            assert client == turn.client.id
            foreign = sum(pulled.get(client, {}).values(), Counter())
            assert multiset(data.take()) == own[client] + foreign
            assert turn.outcome.metrics["set_size"] == len(data) == SIZES[client] + foreign.total()
    assert max(len(data) - SIZES[client] for client, data in sets.seen) >= 2 * 2


def test_in_implicit_mode_the_training_set_stays(
    implicit: Federated, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = Sets(monkeypatch)
    ran(exchange="implicit")
    assert sets.seen
    for client, data in sets.seen:
        assert (len(data), data.received) == (SIZES[client], None)
    assert {t.outcome.metrics["set_size"] for t in turns(implicit, "train")} == set(SIZES)


def test_models_are_weighted_by_their_sets_summed_over_the_steps(explicit: Federated) -> None:
    exposure = dict.fromkeys(range(len(SIZES)), 0)
    sizes = dict.fromkeys(range(len(SIZES)), 0.0)
    for server, phase, means, _, after in explicit.spy.served:
        done = [turn for turn in explicit.spy.turns if turn.phase == phase]
        if phase.name == "train":
            event = explicit.spy._timeline[phase.round - 1][phase.step]
            for turn in done:
                sizes[turn.client.id] = turn.outcome.metrics["set_size"]
                exposure[turn.client.id] += event.steps * int(sizes[turn.client.id])
        elif phase.name == "aggregate":
            sent = {turn.client.id: turn.outcome.up["encoder"] for turn in done}
            assert {client: mean.weight for client, mean in sent.items()} == exposure
            wanted = slow_mean(list(sent.values()))
            for name, value in after.slots["encoder"].items():
                torch.testing.assert_close(value, wanted[name], rtol=0, atol=1e-12)
                assert torch.equal(value, means["encoder"].tensors[name])
            exposure = dict.fromkeys(exposure, 0)
            assert not same_bits(server.slots["encoder"], after.slots["encoder"])
    assert exposure == {0: 0, 1: 0, 2: 0}


def test_weights_of_huge_data_are_counted_in_a_larger_unit() -> None:
    assert weight_unit(60_000, 25, 10) == 1
    assert weight_unit(10**9, 25, 10) == 2981  # 25 · 10⁹ / (2²³ − 10), rounded up


def test_all_devices_take_the_global_model_whoever_was_averaged() -> None:
    some = ran(participation=0.5, exchange="explicit")
    averaged = [turn.client.id for turn in turns(some, "aggregate")]
    assert len(averaged) == 3 * 2
    assert {turn.client.id for turn in turns(some, "train")} == {0, 1, 2}
    begins = [turn for turn in turns(some, "train") if turn.phase.round == 2]
    start = next(s for s, phase, *_ in some.spy.served if phase.round == 2)
    assert len(begins) >= 3
    for turn in begins[:3]:
        assert same_bits(turn.slots["encoder"], start.slots["encoder"])


def test_adam_goes_on_across_pulls_and_aggregations_unless_it_is_reset(alone: Federated) -> None:
    def steps(federated: Federated) -> set[float]:
        return {
            kept["adam/encoder.network.1.weight/step"].item() for kept in federated.kept.values()
        }

    assert steps(alone) == steps(ran(exchange="explicit")) == {7.0}
    assert steps(ran(exchange="explicit", reset_optimizer=True)) == {2.0}


def test_pulls_in_the_middle_of_a_round_do_not_touch_the_batches(alone: Federated) -> None:
    """Implicit without weight takes the same steps, in other phases."""
    cut = ran(exchange="implicit", regulariser=0.0, pull_every=1)
    assert len(turns(cut, "train")) == 7 * 3 > len(turns(alone, "train"))
    assert same_bits(encoder(cut), encoder(alone))


@pytest.mark.parametrize(
    ("changes", "pairs"),
    [
        ({"topology": "ring"}, {(0, 1), (0, 2), (1, 2)}),
        ({"topology": "complete"}, {(0, 1), (0, 2), (1, 2)}),
        ({"topology": "edges", "edges": ((2, 0),)}, {(0, 2)}),
        ({"topology": "geometric", "degree": 4 / 3}, 2),
    ],
)
def test_only_neighbours_write_to_each_other(changes: dict[str, Any], pairs: Any) -> None:
    done = ran(exchange="explicit", **changes)
    edges = {tuple(pair) for pair in done.start.slots["setup"]["edges"].tolist()}
    assert (edges == pairs) if isinstance(pairs, set) else (len(edges) == pairs)
    for kind in ("push", "pull"):
        sent = {(t.client.id, to) for t in turns(done, kind) for to in t.outcome.mail}
        assert sent == edges | {(j, i) for i, j in edges}


@pytest.mark.parametrize(
    "changes",
    [
        {"exchange": "explicit", "importance": "local"},
        {"exchange": "implicit", "importance": "local"},
        {"exchange": "explicit", "reserve": "random"},
        {"exchange": "explicit", "temperature": None},
        {"exchange": "implicit", "score": "literal"},
        {"exchange": "implicit", "reduction": "sum"},
        {"exchange": "implicit", "margin_scale": 3.0},
        {"exchange": "implicit", "overlap_mean": 2.0},
        {"exchange": "implicit", "overlap_deviation": 0.5},
        {"exchange": "implicit", "rho_zeta": 0.0},
        {"exchange": "bulk", "medium": "embeddings"},
        {"exchange": "uniform", "medium": "embeddings"},
        {"exchange": "kmeans", "medium": "embeddings"},
    ],
    ids=lambda changes: "-".join(str(value) for value in changes.values()),
)
def test_every_option_does_something(changes: dict[str, Any]) -> None:
    enough = {"approx_size": 20}  # clusters of one or two points have no scores
    plain = {key: value for key, value in changes.items() if key == "exchange"}
    assert not same_bits(encoder(ran(**changes, **enough)), encoder(ran(**plain, **enough)))


def test_the_pull_uses_the_last_global_model(implicit: Federated) -> None:
    """Embeddings that a device sends are the global model's, also in the middle of a round."""
    method = CFCL(short(exchange="implicit"), tiny_task())
    samples = tiny_workload(short()).samples["train"]
    models = [implicit.start.slots["encoder"], *encoders(implicit)]
    for number, (server, phase, *_) in enumerate(implicit.spy.served):
        if phase.name == "pull":
            assert same_bits(server.slots["encoder"], models[number])
            model = method.model_for(server, None).eval()
            with torch.no_grad():
                embedded = model(torch.from_numpy(samples)).embedding
            for turn in (t for t in implicit.spy.turns if t.phase == phase):
                for letter in turn.outcome.mail.values():
                    sent = letter["embeddings"]
                    near = squared_distances(sent, embedded).min(dim=1).values
                    assert near.max().item() < 1e-20


@pytest.mark.parametrize("exchange", ["explicit", "implicit"])
def test_the_senders_own_model_chooses_otherwise_in_the_middle_of_a_round(exchange: str) -> None:
    """At step 2 devices have their own models; at 3, right after an aggregation, the global one."""
    key = {"explicit": "samples", "implicit": "embeddings"}[exchange]

    def first_pull(importance: str, **changes: Any) -> list[Tensor]:
        own = {"approx_size": 20, "learning_rate": 0.3, **changes}
        done = ran(exchange=exchange, importance=importance, **own)
        sent = [turn.outcome.mail for turn in turns(done, "pull")[: len(SIZES)]]
        return [mail[to][key] for mail in sent for to in sorted(mail)]

    def same(a: list[Tensor], b: list[Tensor]) -> bool:
        return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))

    assert not same(first_pull("local"), first_pull("global"))
    assert same(first_pull("local", pull_every=3), first_pull("global", pull_every=3))
