"""IDFD: its loss, bank and rounds against a plain loop, and what is sent and kept."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from coterie.contract import Plan
from coterie.contract.client import Batch
from coterie.contract.seeds import derive_seed
from coterie.datamodules.augmentations import DigitsAugmentation
from coterie.errors import ConfigError
from coterie.modules.idfd import IDFD, unit_vectors
from coterie.networks.views import seeded_view
from tests.builders.federation import (
    SHAPE,
    SIZES,
    Federated,
    TinyEncoder,
    federate,
    tiny_task,
    tiny_workload,
)
from tests.builders.plain_rounds import assert_same_weights, average_round, loaded

ALPHA, TAU, TAU_2, STAYS, RATE, VELOCITY, DECAY = 0.7, 0.6, 1.5, 0.3, 0.2, 0.8, 0.01
CONFIG = IDFD.Config(
    projection=5,
    batch_size=8,
    epochs=2,
    rounds=2,
    decorrelation=ALPHA,
    temperature=TAU,
    decorrelation_temperature=TAU_2,
    bank_momentum=STAYS,
    learning_rate=RATE,
    sgd_momentum=VELOCITY,
    weight_decay=DECAY,
)


@pytest.fixture(scope="module")
def ran() -> Federated:
    return federate(tiny_workload(CONFIG))


def test_the_defaults_are_those_of_the_authors_code() -> None:
    config = IDFD.Config()
    assert (config.projection, config.temperature, config.decorrelation_temperature) == (128, 1, 2)
    assert (config.decorrelation, config.bank_momentum, config.batch_size) == (1, 0.5, 128)
    assert (config.learning_rate, config.sgd_momentum, config.weight_decay) == (0.03, 0.9, 5e-4)
    assert config.rounds * config.epochs == 2000


def test_the_network_crosses_and_the_bank_stays(ran: Federated) -> None:
    slots = {"encoder", "projector"}
    for task in ran.spy.tasks:
        assert set(task.slots) == set(task.outcome.up) == slots
        assert not task.outcome.gathered
        assert not task.outcome.peer_messages
        assert set(task.outcome.metrics) == {"loss", "instance", "decorrelation"}
        bank = task.outcome.state["bank"]
        assert set(task.outcome.state) == {"bank"}
        assert (bank.shape, bank.dtype) == ((SIZES[task.client.id], 5), torch.float64)
        torch.testing.assert_close(bank.norm(dim=1), torch.ones(len(bank), dtype=bank.dtype))


def test_a_clients_bank_is_random_at_first_and_goes_on_with_it(ran: Federated) -> None:
    for client, size in enumerate(SIZES):
        first, second = (task for task in ran.spy.tasks if task.client.id == client)
        assert first.client.state is None
        assert torch.equal(second.client.state["bank"], first.outcome.state["bank"])
        drawn = unit_vectors(size, 5, first.client.seed)
        assert len(drawn.unique(dim=0)) == size
        moved = (first.outcome.state["bank"] - drawn).abs().amax(dim=1) > 1e-3
        assert moved.sum() >= size - 2  # a last batch of one sample is skipped, once an epoch


def test_features_have_unit_length_and_are_the_representation(ran: Federated) -> None:
    model = ran.spy.model_for(ran.state.server, None).eval()
    found = model(torch.from_numpy(ran.backend.worker.samples["train"]))
    assert found.probabilities is None
    assert found.embedding.shape == (sum(SIZES), 5)
    ones = torch.ones(sum(SIZES), dtype=torch.float64)
    torch.testing.assert_close(found.embedding.norm(dim=1), ones)


def unit(x: Tensor) -> Tensor:
    return x / (x * x).sum(dim=-1, keepdim=True).sqrt()


def told_apart(vectors: Tensor, bank: Tensor, places: list[int], tau: float) -> Tensor:
    """The mean over i of −log( exp(⟨bank_p(i), v_i⟩/τ) / Σ_j exp(⟨bank_j, v_i⟩/τ) )."""
    total = torch.zeros((), dtype=torch.float64)
    for vector, place in zip(vectors, places, strict=True):
        weights = [(other @ vector / tau).exp() for other in bank]
        total = total - (weights[place] / sum(weights)).log()
    return total / len(places)


def test_two_rounds_are_those_of_a_plain_loop(ran: Federated) -> None:
    banks = {}
    for client, size in enumerate(SIZES):
        seed = derive_seed(derive_seed(5, "client", 1, 0, client), "bank")
        draw = torch.Generator().manual_seed(seed)
        banks[client] = unit(torch.randn(size, 5, dtype=torch.float64, generator=draw))
    augment = DigitsAugmentation().build(SHAPE)

    def step(net: Any, batch: Batch, client: int) -> Tensor:
        places, bank = batch["positions"].tolist(), banks[client].clone()
        view = seeded_view(augment, batch["samples"] / 255, derive_seed(batch["seed"], "view"))
        parts = net["online"]
        f = unit(parts["projector"](parts["encoder"](view.double())))
        for feature, place in zip(f.detach(), places, strict=True):
            banks[client][place] = unit(STAYS * bank[place] + (1 - STAYS) * feature)
        g = unit(f.T)
        return told_apart(f, bank, places, TAU) + ALPHA * told_apart(g, g, [*range(5)], TAU_2)

    online = {"encoder": TinyEncoder().build(SHAPE), "projector": nn.Sequential(nn.Linear(6, 5))}
    world = loaded({"online": nn.ModuleDict(online)}, ran.start.slots)
    plan, workload = Plan(batch_size=8, epochs=2), tiny_workload(CONFIG)
    sgd = partial(torch.optim.SGD, lr=RATE, momentum=VELOCITY, weight_decay=DECAY)
    for number in (1, 2):
        average_round(world, workload, (number, 0), plan, step, sgd)
    assert_same_weights(world, ran.state.server.slots, 1e-10)
    for client, kept in ran.kept.items():
        torch.testing.assert_close(kept["bank"], banks[client], rtol=0, atol=1e-10)


def test_a_bank_is_in_float32_also_where_the_network_is_narrower() -> None:
    method = IDFD(CONFIG, tiny_task(torch.bfloat16))
    module = method.build()
    module.start(unit_vectors(9, 5, 1))
    assert (module.bank.dtype, module.online.encoder.network[1].weight.dtype) == (
        torch.float32,
        torch.bfloat16,
    )


def test_a_kept_bank_is_not_written_into() -> None:
    module, bank = IDFD(CONFIG, tiny_task()).build(), unit_vectors(9, 5, 1)
    before = bank.clone()
    module.start(bank)
    module.bank.zero_()
    assert torch.equal(bank, before)


def test_without_a_client_the_bank_grows_to_the_positions_that_it_sees() -> None:
    module = IDFD(CONFIG, tiny_task()).build()
    for positions, size in (([3, 1], 4), ([2, 0], 4), ([6, 0], 7)):
        before = module.bank
        batch = {"samples": torch.zeros(2, *SHAPE), "positions": torch.tensor(positions)}
        module.on_before_batch_transfer(batch, 0)
        assert module.bank.shape == (size, 5)
        assert torch.equal(module.bank[: len(before)], before)
    ones = torch.ones(7, dtype=torch.float64)
    torch.testing.assert_close(module.bank.norm(dim=1), ones)


def test_a_batch_without_positions_is_refused_in_a_sentence() -> None:
    module = IDFD(CONFIG, tiny_task()).build()
    with pytest.raises(ConfigError, match=r"method=IDFD: a batch has no positions, .*\.$"):
        module.on_before_batch_transfer(torch.zeros(2, *SHAPE), 0)


def test_a_client_that_was_away_keeps_its_bank() -> None:
    third = CONFIG.model_copy(update={"rounds": 6, "epochs": 1, "participation": 0.3})
    ran = federate(tiny_workload(third))
    assert [task.phase.round for task in ran.spy.tasks] == [1, 2, 3, 4, 5, 6]
    last: dict[int, Tensor] = {}
    for task in ran.spy.tasks:
        before = None if task.client.state is None else task.client.state["bank"]
        assert (before is None) == (task.client.id not in last)
        assert before is None or torch.equal(before, last[task.client.id])
        last[task.client.id] = task.outcome.state["bank"]
    assert len(last) < len(ran.spy.tasks)
