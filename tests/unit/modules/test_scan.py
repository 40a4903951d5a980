"""SCAN: stages, neighbours, its losses and rounds against a plain loop, what is sent and kept."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coterie.contract import Plan
from coterie.contract.client import Batch, ClientData
from coterie.contract.seeds import derive_seed
from coterie.datamodules.augmentations import DigitsAugmentation
from coterie.errors import ConfigError
from coterie.modules.scan import SCAN, NeighbourClusters
from coterie.networks.encoders import Raw
from coterie.networks.views import seeded_view, two_views
from tests.builders.federation import (
    SHAPE,
    SIZES,
    Federated,
    TinyEncoder,
    federate,
    same_bits,
    tiny_task,
    tiny_workload,
)
from tests.builders.plain_rounds import assert_same_weights, average_round, loaded

LAMBDA, THRESHOLD, RATE, DECAY = 1.5, 0.45, 0.02, 0.01
CONFIG = SCAN.Config(
    neighbours=10,
    entropy_weight=LAMBDA,
    threshold=THRESHOLD,
    learning_rate=RATE,
    weight_decay=DECAY,
    rounds=2,
    epochs=2,
    batch_size=8,
    labelling_rounds=2,
    labelling_epochs=1,
    labelling_batch_size=16,
)
SLOTS = {"encoder", "projector"}


@pytest.fixture(scope="module")
def ran() -> Federated:
    return federate(tiny_workload(CONFIG))


def test_the_defaults_are_the_papers() -> None:
    config = SCAN.Config()
    assert (config.neighbours, config.entropy_weight, config.threshold) == (20, 5.0, 0.99)
    assert (config.learning_rate, config.weight_decay) == (1e-4, 1e-4)
    assert (config.rounds * config.epochs, config.batch_size) == (100, 128)
    assert (config.labelling_rounds * config.labelling_epochs) == 200
    assert config.labelling_batch_size == 1000


def test_clustering_comes_before_self_labelling(ran: Federated) -> None:
    stages = [(phase.round, phase.name, phase.stage) for _, phase, *_ in ran.spy.served]
    own = ["clustering", "clustering", "self-labelling", "self-labelling"]
    assert stages == [(number, stage, stage) for number, stage in enumerate(own, start=1)]
    alone = SCAN(CONFIG.model_copy(update={"labelling_rounds": 0}), tiny_task())
    assert alone.rounds == 2


def test_the_network_crosses_and_the_neighbours_stay(ran: Federated) -> None:
    for task in ran.spy.tasks:
        assert set(task.slots) == set(task.outcome.up) == SLOTS
        assert not task.outcome.gathered
        assert not task.outcome.peer_messages
        clusters = task.phase.stage == "clustering"
        terms = {"consistency", "entropy"} if clusters else {"confident"}
        assert set(task.outcome.metrics) == {"loss"} | terms
        if clusters:
            near, size = task.outcome.state["neighbours"], SIZES[task.client.id]
            assert set(task.outcome.state) == {"neighbours"}
            assert (near.shape, near.dtype) == ((size, min(10, size - 1)), torch.int64)
        else:
            assert task.outcome.state is None
    assert ran.kept == {}


def test_neighbours_are_found_once_by_the_encoder_that_came_first(ran: Federated) -> None:
    for client in range(len(SIZES)):
        first, second = [t for t in ran.spy.tasks if t.client.id == client][:2]
        encoder = TinyEncoder().build(SHAPE).double()
        given = first.slots["encoder"].items()
        named = {name.removeprefix("online.encoder."): value for name, value in given}
        encoder.load_state_dict(named, strict=False)
        h = first.client.embed(encoder).numpy()
        unit = h / np.linalg.norm(h, axis=1, keepdims=True)
        cosine = unit @ unit.T
        np.fill_diagonal(cosine, -2.0)
        nearest = np.argsort(-cosine, axis=1)[:, : min(10, len(h) - 1)]
        found = first.outcome.state["neighbours"]
        assert np.array_equal(found.numpy(), np.sort(nearest, axis=1))
        assert not same_bits(first.slots["encoder"], second.slots["encoder"])
        assert same_bits(second.outcome.state, first.outcome.state)


def test_the_result_is_the_encoder_and_the_heads_probabilities(ran: Federated) -> None:
    model = ran.spy.model_for(ran.state.server, None).eval()
    found = model(torch.from_numpy(ran.backend.worker.samples["train"]))
    assert found.embedding.shape == (sum(SIZES), 6)
    head = ran.state.server.slots["projector"]
    logits = found.embedding @ head["online.projector.weight"].T + head["online.projector.bias"]
    torch.testing.assert_close(found.probabilities, logits.softmax(dim=1))


def entropy_of_mean(p: Tensor) -> Tensor:
    return -sum(q * q.log() for q in p.mean(dim=0))


def clustering_loss(net: nn.Module, batch, data: ClientData, near: Tensor) -> Tensor:
    """SCAN's eq. (2) with one neighbour of each sample."""
    draw = torch.Generator().manual_seed(derive_seed(batch["seed"], "neighbour"))
    places = torch.randint(near.shape[1], (len(batch["samples"]), 1), generator=draw)[:, 0]
    pairs = zip(batch["positions"].tolist(), places.tolist(), strict=True)
    others = data.take(np.array([near[i, place].item() for i, place in pairs]))
    augment = DigitsAugmentation().build(SHAPE)
    anchors, _ = two_views(augment, batch["samples"], batch["seed"], torch.float64)
    _, neighbours = two_views(augment, others, batch["seed"], torch.float64)
    p, q = (net(view).softmax(dim=1) for view in (anchors, neighbours))
    agree = sum(-(a @ b).log() for a, b in zip(p, q, strict=True)) / len(p)
    return agree - LAMBDA * entropy_of_mean(p)


def labelling_loss(net: nn.Module, batch) -> Tensor | None:
    """The mean over clusters of the cross-entropy of a view and the plain sample's sure cluster."""
    with torch.no_grad():
        p = net(batch["samples"].double() / 255).softmax(dim=1)
    seed = derive_seed(batch["seed"], "view", 0)
    view = seeded_view(DigitsAugmentation().build(SHAPE), batch["samples"] / 255, seed)
    logs = net(view.double()).log_softmax(dim=1)
    each: dict[int, list[Tensor]] = {}
    for plain, own in zip(p, logs, strict=True):
        if plain.max() > THRESHOLD:
            each.setdefault(int(plain.argmax()), []).append(-own[plain.argmax()])
    means = [sum(terms) / len(terms) for terms in each.values()]
    return sum(means) / len(means) if means else None


def test_four_rounds_are_those_of_a_plain_loop(ran: Federated) -> None:
    workload, labelled = tiny_workload(CONFIG), []
    near = {t.client.id: t.outcome.state["neighbours"] for t in ran.spy.tasks[: len(SIZES)]}

    def whole(net: Any) -> nn.Module:
        return nn.Sequential(net["online"]["encoder"], net["online"]["projector"])

    def cluster(net: Any, batch: Batch, client: int) -> Tensor:
        data = ClientData(samples=workload.samples["train"], rows=workload.parts[client])
        return clustering_loss(whole(net), batch, data, near[client])

    def label(net: Any, batch: Batch, client: int) -> Tensor:
        loss = labelling_loss(whole(net), batch)
        labelled.extend([client] * (loss is not None))
        # Adam leaves out parameters without a gradient.
        return torch.zeros((), requires_grad=True) if loss is None else loss

    online = {"encoder": TinyEncoder().build(SHAPE), "projector": nn.Linear(6, 3)}
    world = loaded({"online": nn.ModuleDict(online)}, ran.start.slots)
    adam = partial(torch.optim.Adam, lr=RATE, weight_decay=DECAY)
    for number in (1, 2):
        plan = Plan(batch_size=8, epochs=2)
        average_round(world, workload, (number, 0), plan, cluster, adam)
    for number in (3, 4):
        average_round(world, workload, (number, 0), Plan(batch_size=16, epochs=1), label, adam)
        assert {*labelled} == {*range(len(SIZES))}
        labelled.clear()
    assert_same_weights(world, ran.state.server.slots, 1e-9)


def test_where_nothing_is_sure_nothing_is_trained() -> None:
    ran = federate(tiny_workload(CONFIG.model_copy(update={"threshold": 0.999999})))
    for task in ran.spy.tasks[6:]:
        assert (task.outcome.metrics["loss"], task.outcome.metrics["confident"]) == (0.0, 0.0)
        for slot, mean in task.outcome.up.items():
            for name, value in mean.tensors.items():
                same = torch.equal(value, task.slots[slot][name])
                assert same != ("running" in name)  # batch norm sees samples all the same


def test_a_client_that_comes_later_finds_its_neighbours_then() -> None:
    few = {"rounds": 6, "labelling_rounds": 0, "epochs": 1, "participation": 0.3}
    ran = federate(tiny_workload(CONFIG.model_copy(update=few)))
    seen: dict[int, Tensor] = {}
    for task in ran.spy.tasks:
        client, near = task.client.id, task.outcome.state["neighbours"]
        assert (task.client.state is None) == (client not in seen)
        assert torch.equal(seen.setdefault(client, near), near)
    assert len(seen) < len(ran.spy.tasks)


def test_a_fixed_encoder_is_not_sent_back_and_the_head_is_trained() -> None:
    workload = tiny_workload(CONFIG)
    ran = federate(replace(workload, task=replace(workload.task, encoder=Raw())))
    assert {slot for task in ran.spy.tasks for slot in task.outcome.up} == {"projector"}
    assert not same_bits(ran.start.slots["projector"], ran.state.server.slots["projector"])


def test_without_a_client_a_sample_is_its_own_neighbour() -> None:
    module = NeighbourClusters(CONFIG, tiny_task(), "clustering")
    samples = torch.randint(256, (4, *SHAPE), dtype=torch.uint8)
    batch = module.on_before_batch_transfer({"samples": samples, "seed": 7}, 0)
    wanted = two_views(module.augment, samples, 7, torch.float64)
    for view, expected in zip(module.on_after_batch_transfer(batch, 0), wanted, strict=True):
        assert torch.equal(view, expected)


def test_one_cluster_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"method\.clusters=1: it must be at least 2"):
        SCAN(CONFIG.model_copy(update={"clusters": 1}), tiny_task()).build()
