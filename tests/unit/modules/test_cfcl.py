"""CF-CL on a tiny federation: identities, absent devices, messages, resumption."""

import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.aggregation.exact import ExactMeans, Layout
from coterie.checkpoints.checkpoint import load_checkpoint
from coterie.clustering.kmeans import kmeans
from coterie.config.participation import ParticipationConfig
from coterie.contract import WeightedUpdate
from coterie.contract.client import ClientData
from coterie.contract.seeds import derive_seed
from coterie.execution.serial import SerialBackend
from coterie.modules.cfcl import CFCL, ROLES, weight_unit
from coterie.modules.cfcl_device import Device
from coterie.modules.cfcl_model import TripletModel
from coterie.modules.cfcl_timeline import timeline
from coterie.peers.clusters import squared_distances
from coterie.rounds.loop import Loop
from coterie.rounds.state import RunState
from tests.builders.cfcl import encoder, encoders, messages, ran, short, tasks
from tests.builders.checkpoints import save
from tests.builders.federation import (
    SHAPE,
    SIZES,
    Federated,
    federate,
    same_bits,
    slow_mean,
    tiny_task,
    tiny_workload,
)
from tests.builders.loops import make_loop, plain, start
from tests.builders.observers import Silent


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
    others = [task.outcome.peer_messages for task in tasks(idle, "pull")]
    assert others == [{}] * len(others)


@pytest.mark.parametrize("exchange", ["explicit", "implicit"])
def test_proximity_is_reported_after_each_pull_and_changes_no_model(exchange: str) -> None:
    measured, plainly = ran(exchange=exchange, proximity=True), ran(exchange=exchange)
    assert same_bits(encoder(measured), encoder(plainly))
    told = {
        (timeline(measured.config)[task.phase.round - 1][task.phase.step].step, task.client.id)
        for task in tasks(measured, "train")
        if "proximity" in task.outcome.metrics
    }
    assert told == set(itertools.product((2, 4, 6), range(len(SIZES))))
    assert not any("proximity" in task.outcome.metrics for task in tasks(plainly, "train"))


def test_proximity_is_the_distance_to_the_devices_own_centroids() -> None:
    done = ran(exchange="explicit", proximity=True)
    task = next(task for task in tasks(done, "train") if "proximity" in task.outcome.metrics)
    network = TripletModel(short(), tiny_task()).encoder
    network.load_state_dict(
        {
            name.removeprefix("encoder."): value
            for name, value in done.start.slots["encoder"].items()
        }
    )
    network.eval()

    def embed(samples: Tensor) -> Tensor:
        return torch.cat([network(row[None].double() / 255.0) for row in samples]).detach()

    rows = done.backend.worker.parts[task.client.id]
    own = embed(ClientData(samples=tiny_workload(short()).samples["train"], rows=rows).take())
    arrived = [value for _, to, key, value in first_pull(done) if to == task.client.id]
    received = embed(torch.cat(arrived))
    seed = derive_seed(task.client.seed, "proximity")
    centres = kmeans(own, 3, seed=seed, restarts=1).centroids.double()

    def nearest(points: Tensor) -> Tensor:
        return torch.tensor([min(float((p - c).norm()) for c in centres) for p in points])

    far, told = nearest(received) / nearest(own).mean(), task.outcome.metrics
    assert told["proximity"] == pytest.approx(float(far.mean()), abs=1e-6)
    shares = [told[f"proximity/{edge}"] for edge in ("1", "1.5", "2")]
    assert shares == [float((far <= edge).double().mean()) for edge in (1.0, 1.5, 2.0)]
    assert 0 < shares[1] < 1


def first_pull(done: Federated) -> list[tuple[int, int, str, Tensor]]:
    pulls = tasks(done, "pull")
    return [
        (task.client.id, to, key, value)
        for task in sorted(pulls, key=lambda task: task.client.id)
        if (task.phase.round, task.phase.step) == (pulls[0].phase.round, pulls[0].phase.step)
        for to, message in task.outcome.peer_messages.items()
        for key, value in message.items()
        if key == "samples"
    ]


def test_without_the_regularisers_weight_implicit_is_fedavg_to_the_bit(
    alone: Federated, implicit: Federated
) -> None:
    weightless = ran(exchange="implicit", regulariser=0.0)
    assert same_bits(encoder(weightless), encoder(alone))
    assert any(task.outcome.peer_messages for task in tasks(weightless, "pull"))
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
    own = [
        multiset(torch.from_numpy(done.backend.worker.samples["train"][rows]))
        for rows in done.backend.worker.parts
    ]
    pulled: dict[int, dict[int, Counter[bytes]]] = {}
    seen = iter(sets.seen)
    for task in done.spy.tasks:
        if task.phase.name == "pull":  # everyone purges at the same time
            pulled = pulled if task.client.id else {}
            for recipient, message in task.outcome.peer_messages.items():
                sent = multiset(message["samples"])
                assert sent <= own[task.client.id], "foreign samples were passed on"
                pulled.setdefault(recipient, {})[task.client.id] = sent
        elif task.phase.name == "train":
            client, data = next(seen)
            assert client == task.client.id
            foreign = sum(pulled.get(client, {}).values(), Counter())
            assert multiset(data.take()) == own[client] + foreign
            assert task.outcome.metrics["set_size"] == len(data) == SIZES[client] + foreign.total()
    assert max(len(data) - SIZES[client] for client, data in sets.seen) >= 2 * 2


def test_in_implicit_mode_the_training_set_stays(
    implicit: Federated, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = Sets(monkeypatch)
    ran(exchange="implicit")
    assert sets.seen
    for client, data in sets.seen:
        assert (len(data), data.received) == (SIZES[client], None)
    assert {t.outcome.metrics["set_size"] for t in tasks(implicit, "train")} == set(SIZES)


def test_models_are_weighted_by_their_sets_summed_over_the_steps(explicit: Federated) -> None:
    exposure = dict.fromkeys(range(len(SIZES)), 0)
    sizes = dict.fromkeys(range(len(SIZES)), 0.0)
    for server, phase, means, _, after in explicit.spy.served:
        done = [task for task in explicit.spy.tasks if task.phase == phase]
        if phase.name == "train":
            event = timeline(explicit.config)[phase.round - 1][phase.step]
            for task in done:
                sizes[task.client.id] = task.outcome.metrics["set_size"]
                exposure[task.client.id] += event.steps * int(sizes[task.client.id])
        elif phase.name == "aggregate":
            sent = {task.client.id: task.outcome.up["encoder"] for task in done}
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
    averaged = [task.client.id for task in tasks(some, "aggregate")]
    assert len(averaged) == 3 * 2
    assert {task.client.id for task in tasks(some, "train")} == {0, 1, 2}
    begins = [task for task in tasks(some, "train") if task.phase.round == 2]
    start = next(s for s, phase, *_ in some.spy.served if phase.round == 2)
    assert len(begins) >= 3
    for task in begins[:3]:
        assert same_bits(task.slots["encoder"], start.slots["encoder"])


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
    assert len(tasks(cut, "train")) == 7 * 3 > len(tasks(alone, "train"))
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
        sent = {(t.client.id, to) for t in tasks(done, kind) for to in t.outcome.peer_messages}
        assert sent == edges | {(j, i) for i, j in edges}


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (
            lambda peer_messages: {**peer_messages, 1: next(iter(peer_messages.values()))},
            "A peer message goes to client 1; send it to",
        ),
        (
            lambda peer_messages: {
                to: {k: v[:0] for k, v in own.items()} for to, own in peer_messages.items()
            },
            "'samples' has shape (0, ",
        ),
    ],
    ids=["stranger", "empty"],
)
def test_a_peer_message_to_a_stranger_or_with_nothing_in_it_is_its_senders_failure(
    spoil: Any, sentence: str
) -> None:
    config = short(exchange="explicit", topology="edges", edges=((2, 0),))
    done = federate(tiny_workload(config))
    method = done.backend.worker.method.method
    honest = method.client

    def faulty(client: Any, phase: Any, slots: Any) -> Any:
        outcome = honest(client, phase, slots)
        spoiled = client.id == 0 and phase.name == "pull"
        return replace(outcome, peer_messages=spoil(outcome.peer_messages)) if spoiled else outcome

    method.client = faulty
    loop = make_loop(tiny_workload(config))
    loop.backend = done.backend
    state = start(loop)
    loop.run(state)
    assert state.failures
    assert all("client 0 failed" in f and sentence in f for f in state.failures)


@pytest.mark.ci
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
            for task in (t for t in implicit.spy.tasks if t.phase == phase):
                for message in task.outcome.peer_messages.values():
                    sent = message["embeddings"]
                    near = squared_distances(sent, embedded).min(dim=1).values
                    assert near.max().item() < 1e-20


@pytest.mark.parametrize("exchange", ["explicit", "implicit"])
def test_the_senders_own_model_chooses_otherwise_in_the_middle_of_a_round(exchange: str) -> None:
    """At step 2 devices have their own models; at 3, right after an aggregation, the global one."""
    key = {"explicit": "samples", "implicit": "embeddings"}[exchange]

    def first_pull(importance: str, **changes: Any) -> list[Tensor]:
        own = {"approx_size": 20, "learning_rate": 0.3, **changes}
        done = ran(exchange=exchange, importance=importance, **own)
        sent = [task.outcome.peer_messages for task in tasks(done, "pull")[: len(SIZES)]]
        return [peer_messages[to][key] for peer_messages in sent for to in sorted(peer_messages)]

    def same(a: list[Tensor], b: list[Tensor]) -> bool:
        return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))

    assert not same(first_pull("local"), first_pull("global"))
    assert same(first_pull("local", pull_every=3), first_pull("global", pull_every=3))


IDLE: list[dict[str, Any]] = [
    {"exchange": "explicit", "budget": 0},
    {"exchange": "bulk", "budget": 0},
    {"exchange": "implicit", "regulariser": 0.0},
    {"exchange": "implicit", "regulariser": 0.0, "pull_every": 1},
]


def averaged(federated: Federated) -> list[int]:
    return [task.client.id for task in tasks(federated, "aggregate")]


@pytest.mark.parametrize(
    "some",
    [{"participation": 0.5}, {"run": {"participation": ParticipationConfig(fraction=0.5)}}],
    ids=["averaged", "there"],
)
def test_what_is_exchanged_does_not_decide_who_is_averaged(some: dict[str, Any]) -> None:
    alone = ran(exchange="none", **some)
    assert len(averaged(alone)) == 3 * 2
    for changes in IDLE:
        idle = ran(**changes, **some)
        assert averaged(idle) == averaged(alone)
        assert same_bits(encoder(idle), encoder(alone))


def test_who_is_drawn_for_a_round_is_there_in_all_of_it() -> None:
    done = ran(run={"participation": ParticipationConfig(count=1)})
    for number in (1, 2, 3):
        there = {task.client.id for task in done.spy.tasks if task.phase.round == number}
        assert len(there) == 1
    assert len(averaged(done)) == 3
    assert all(task.outcome.up for task in tasks(done, "aggregate"))


def test_a_device_that_missed_the_push_makes_up_for_it() -> None:
    late = {"participation": ParticipationConfig(availability=((0, 1), *[(0, 1, 2)] * 4))}
    done = ran(run=late, exchange="explicit", total_steps=12, pull_every=3)
    sent = [
        (task.phase.name, task.phase.round)
        for task in done.spy.tasks
        for message in task.outcome.peer_messages.values()
        if task.client.id == 2 and "reserve_samples" in message
    ]
    assert sent == [("pull", 2)] * 2  # once, to both neighbours
    kept = done.kept
    for device in (0, 1):
        assert kept[device]["reserves/2"].shape[0] == 4
    # What the others pushed in the first round waited for it.
    assert {"reserves/0", "reserves/1"} <= set(kept[2])


def test_reserve_embeddings_of_an_earlier_model_are_not_used() -> None:
    """Device 2 is away when new ones are pushed: the others choose for it without."""
    away = {"participation": ParticipationConfig(availability=((0, 1, 2), (0, 1, 2), (0, 1)))}
    done = ran(run=away, exchange="implicit")
    assert "reserves/2" not in done.kept[0]
    assert "reserves/1" in done.kept[0]


def test_without_exchange_weights_are_counted_as_without_a_budget() -> None:
    def unit(**changes: Any) -> int:
        options = {"aggregate_every": 25, "topology": "complete", "approx_size": 50}
        method = CFCL(short(**options, **changes), tiny_task())
        return int(method.init(dict.fromkeys(range(10), 33_554), 0).slots["setup"]["unit"])

    assert unit(exchange="none", budget=50) == unit(exchange="explicit", budget=0) == 1
    assert unit(exchange="explicit", budget=50) == 2


@pytest.mark.parametrize("exchange", ["bulk", "explicit", "implicit"])
def test_weights_stay_in_the_range_of_exact_sums_however_much_is_pulled(exchange: str) -> None:
    config = {"total_steps": 2000, "aggregate_every": 25, "pull_every": 25, "budget": 50}
    config |= {"approx_size": 50}
    method = CFCL(short(exchange=exchange, topology="complete", **config), tiny_task())
    sizes = dict.fromkeys(range(10), 6_000)
    unit = int(method.init(sizes, 0).slots["setup"]["unit"])
    pulled = {"bulk": 9 * 50 * 80, "explicit": 9 * 50, "implicit": 0}[exchange]
    weight = max(1, (6_000 + pulled) * 25 // unit)
    means = ExactMeans({"encoder": Layout.of({"a": torch.ones(1)})})
    for _ in sizes:
        means.add(0, {"encoder": WeightedUpdate(weight=weight, tensors={"a": torch.ones(1)})})
    assert means.result()["encoder"].weight == 10 * weight
    assert unit == (2 if exchange == "bulk" else 1)


def test_of_many_small_devices_each_counts() -> None:
    """Most of a hundred thousand weigh less than the unit, which is 1 at the least."""
    devices, samples = 10**5, 10**8
    unit = weight_unit(samples, 25, devices)
    small, large = (devices - 1) * max(1, 3 * 25 // unit), (samples - 3 * devices) * 25 // unit
    assert small + large <= 2**23


WIDTH, FEATURES = 8, 6
ENCODER = {
    "encoder.network.1.weight": (WIDTH, 64),
    "encoder.network.2.weight": (WIDTH,),
    "encoder.network.2.bias": (WIDTH,),
    "encoder.network.2.running_mean": (WIDTH,),
    "encoder.network.2.running_var": (WIDTH,),
    "encoder.network.4.weight": (FEATURES, WIDTH),
    "encoder.network.4.bias": (FEATURES,),
}
PAIRS = set(itertools.permutations(range(len(SIZES)), 2))
EMBEDDED = [
    {"exchange": "implicit"},
    *({"exchange": exchange, "medium": "embeddings"} for exchange in ("uniform", "bulk", "kmeans")),
]


def shapes(tensors: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in tensors.items()}


@pytest.mark.parametrize("exchange", ["explicit", "implicit", "none", "kmeans"])
def test_to_the_server_go_encoders_alone(exchange: str) -> None:
    done = ran(exchange=exchange)
    for task in done.spy.tasks:
        assert task.outcome.gathered == {}
        if task.phase.name == "aggregate":
            assert set(task.outcome.up) == {"encoder"}
            assert shapes(task.outcome.up["encoder"].tensors) == ENCODER
        else:
            assert task.outcome.up == {}
        down = {slot: shapes(tensors) for slot, tensors in task.slots.items()}
        setup = {"edges": (3, 2), "seed": (1,), "unit": (1,)}
        model = {} if task.phase.name == "aggregate" else {"encoder": ENCODER}
        assert down == model | {"setup": setup}


def test_explicit_letters(explicit: Federated) -> None:
    assert {(by, to) for by, to, *_ in messages(explicit)} == PAIRS
    for task in tasks(explicit, "push"):
        assert task.phase.round == 1
        for message in task.outcome.peer_messages.values():
            assert shapes(message) == {"reserve_samples": (4, *SHAPE)}
    for task in tasks(explicit, "pull"):
        for message in task.outcome.peer_messages.values():
            assert shapes(message) == {"samples": (2, *SHAPE)}
    assert {value.dtype for *_, value in messages(explicit)} == {torch.uint8}
    assert len(tasks(explicit, "push")) == len(SIZES)  # once and for all
    assert len(tasks(explicit, "pull")) == 3 * len(SIZES)


def test_implicit_letters(implicit: Federated) -> None:
    kinds = {
        (task.phase.name, tuple(shapes(message).items()))
        for task in implicit.spy.tasks
        for message in task.outcome.peer_messages.values()
    }
    assert kinds == {
        ("push", (("reserve_embeddings", (4, FEATURES)),)),
        ("pull", (("embeddings", (2, FEATURES)),)),
    }
    assert len(tasks(implicit, "push")) == len(tasks(implicit, "pull")) == 3 * len(SIZES)


@pytest.mark.parametrize("changes", EMBEDDED, ids=lambda changes: changes["exchange"])
def test_in_implicit_mode_nothing_like_an_image_ever_leaves_a_device(changes: Any) -> None:
    done = ran(**changes)
    images = done.backend.worker.samples["train"]
    known = {row.tobytes() for row in images.reshape(len(images), -1)}
    unit = {row.tobytes() for row in (images / 255.0).reshape(len(images), -1)}
    pixels = int(np.prod(SHAPE))
    sent = [(key, value) for *_, key, value in messages(done)]
    assert sent
    for task in done.spy.tasks:
        declared = {"push": {"reserve_embeddings"}, "pull": {"embeddings"}}
        assert task.phase.peer_messages == declared.get(task.phase.name, set())
        assert task.phase.gathered == set()
        sent += list(task.outcome.up.get("encoder").tensors.items()) if task.outcome.up else []
    for key, value in sent:
        assert value.is_floating_point(), key
        if not key.startswith("encoder."):
            assert value.shape[1:] == (FEATURES,), key
        for row in value.reshape(-1, pixels) if value.numel() % pixels == 0 else []:
            assert row.numpy().tobytes() not in known | unit, key


def test_samples_do_leave_in_explicit_mode(explicit: Federated) -> None:
    """So that the test above could fail."""
    images = explicit.backend.worker.samples["train"]
    known = {row.tobytes() for row in images}
    assert all(row.numpy().tobytes() in known for *_, value in messages(explicit) for row in value)


def test_every_state_entry_has_a_role() -> None:
    module = TripletModel(short(), tiny_task())
    ROLES.check(module)
    assert {ROLES.of(name).slot for name in ENCODER} == {"encoder"}
    assert isinstance(CFCL(short(), tiny_task()).build(), TripletModel)


def test_bytes_and_items_are_those_counted_by_hand(
    explicit: Federated, implicit: Federated
) -> None:
    clients, pairs = len(SIZES), len(PAIRS)
    size = 8 * sum(int(np.prod(shape)) for shape in ENCODER.values())
    setup = 8 * (3 * 2 + 1 + 1)
    for done, key, pushes, each in (
        (explicit, "samples", 1, 64),
        (implicit, "embeddings", 3, 8 * FEATURES),
    ):
        items = {f"reserve_{key}": pushes * pairs * 4, key: 3 * pairs * 2}
        ledger = done.state.ledger
        assert ledger.items == dict(sorted(items.items()))
        assert ledger.peer == sum(items.values()) * each
        # Each of the three global models but the last, and the set-up once.
        assert ledger.down == clients * (3 * size + setup)
        trained = len(tasks(done, "train"))
        assert ledger.up == clients * 3 * (size + 8 + 8) + trained * 8 * 6
        for commit in done.commits:
            flat = commit.traffic.rows()
            counted = {k: v for k, v in flat.items() if k.startswith("items/")}
            name = {"push": f"reserve_{key}", "pull": key}.get(commit.phase.name)
            wanted = {f"items/peer/{name}": pairs * (4 if "reserve" in name else 2)} if name else {}
            assert counted == wanted


def test_what_a_device_keeps_holds_its_neighbours_data(explicit: Federated) -> None:
    for client, kept in explicit.kept.items():
        names = {name for name in kept if name.partition("/")[0] in ("reserves", "pulled")}
        others = set(range(len(SIZES))) - {client}
        assert names == {f"{group}/{by}" for group in ("reserves", "pulled") for by in others}
        assert kept["reserve"].shape == (4,)


class Crash(BaseException):
    """The process is gone."""


@pytest.mark.parametrize(
    "exchange",
    ["explicit", *(pytest.param(e, marks=pytest.mark.slow) for e in ("implicit", "bulk"))],
)
def test_it_resumes_to_the_same_bits_after_any_phase(exchange: str, tmp_path) -> None:
    workload = tiny_workload(short(exchange=exchange))
    whole = ran(exchange=exchange)
    in_flight = 0
    for phases in range(1, len(whole.commits)):
        folder = tmp_path / str(phases)
        backend = SerialBackend(workload, lambda: None)

        def commit(state: RunState, _: object, phases=phases, folder=folder, backend=backend):
            if state.phases == phases:
                save(folder, state, backend, keep=1)
                raise Crash

        loop = Loop(backend.worker.method, backend, workload, Silent(), commit)
        with pytest.raises(Crash):
            loop.run(RunState(server=whole.start))
        again = SerialBackend(workload, lambda: None)
        torch.rand(3)
        state = load_checkpoint(folder, again).state
        in_flight += bool(state.peer_messages)
        Loop(again.worker.method, again, workload, Silent(), lambda *_: None).run(state)
        assert plain(state) == plain(whole.state)
        assert state.ledger.items == whole.state.ledger.items
    assert in_flight >= 2
