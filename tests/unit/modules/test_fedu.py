"""FedU and FedEMA: what they share with FedBYOL, what is blended, what clients keep and send."""

import pytest
import torch

from coterie.config.participation import ParticipationConfig
from coterie.errors import ConfigError
from coterie.modules.byol import FedBYOL
from coterie.modules.fedema import Blended, FedEMA
from coterie.modules.fedu import FedU
from tests.builders.federation import Federated, federate, same_bits, tiny_task, tiny_workload

SMALL = {"hidden": 7, "projection": 5, "bottleneck": 3, "batch_size": 8, "epochs": 1, "rounds": 3}
RATES = {"learning_rate": 0.3, "weight_decay": 0.01}


def ran(kind, **options) -> Federated:
    return federate(tiny_workload(kind.Config(**{**SMALL, **RATES, **options})))


@pytest.fixture(scope="module")
def fedema() -> Federated:
    return ran(FedEMA)


def networks(federated: Federated) -> dict[str, torch.Tensor]:
    slots = federated.state.server.slots
    return {f"{slot}/{n}": t for slot, tensors in slots.items() for n, t in tensors.items()}


def test_fedu_is_fedbyol_with_its_papers_defaults() -> None:
    ours, theirs = (ran(kind, predictor_threshold=0.5) for kind in (FedU, FedBYOL))
    assert same_bits(networks(ours), networks(theirs))
    assert all(same_bits(ours.kept[client], theirs.kept[client]) for client in theirs.kept)
    kept = {any("predictor" in n for n in task.outcome.state) for task in ours.spy.tasks}
    assert kept == {True, False}, "the threshold is to divide the tasks"


def test_with_lambda_0_fedema_is_fedbyol_bit_for_bit() -> None:
    ours, theirs = ran(FedEMA, scale=0.0), ran(FedBYOL, predictor_threshold=None)
    assert same_bits(networks(ours), networks(theirs))


def test_with_a_large_lambda_clients_go_on_with_their_own_parameters() -> None:
    alone = ran(FedEMA, scale=1e6)
    for task in alone.spy.tasks[3:]:
        module = alone.spy.method.build()
        module.begin(task.client.state)
        own = {name: p.detach() for name, p in module.named_parameters()}
        blended = [name for name in own if not name.startswith("target.")]
        assert all(torch.equal(own[name], task.client.state[name]) for name in blended)


def test_each_client_finds_its_lambda_in_its_first_task(fedema: Federated) -> None:
    for client in fedema.kept:
        tasks = [task.outcome.state for task in fedema.spy.tasks if task.client.id == client]
        first, *later = tasks
        assert first["scale"] * first["divergence"] == pytest.approx(0.7, rel=1e-12)
        assert all(task["scale"] == first["scale"] for task in later)
        assert all(task["divergence"] != first["divergence"] for task in later)
    assert len({float(kept["scale"]) for kept in fedema.kept.values()}) == len(fedema.kept)


def test_an_encoder_that_does_not_move_blends_nothing_and_sets_no_lambda() -> None:
    torch.manual_seed(0)
    module = Blended(FedEMA.Config(**SMALL), tiny_task())
    module.begin({})
    kept = {**module.state_dict(), **module.end()}
    assert kept["divergence"] == 0.0
    assert "scale" not in kept
    before = {name: value.clone() for name, value in module.state_dict().items()}
    module.begin(kept)
    assert same_bits(before, module.state_dict())


def test_a_client_sends_its_networks_and_keeps_the_rest(fedema: Federated) -> None:
    for task in fedema.spy.tasks:
        assert set(task.outcome.up) == set(task.slots) == {"encoder", "projector", "predictor"}
        assert not task.outcome.gathered
        assert not task.outcome.peer_messages
        assert set(task.outcome.metrics) == {"loss"}
        parts = {name.partition(".")[0] for name in task.outcome.state}
        assert parts == {"online", "predictor", "target", "divergence", "scale"}
    sent = [n for mean in fedema.spy.tasks[0].outcome.up.values() for n in mean.tensors]
    assert not [name for name in sent if name.startswith("target.")]


def test_with_one_client_present_the_model_is_its_own() -> None:
    """The baseline "single client" is a key of participation, whatever the method."""
    config = FedU.Config(**SMALL, **RATES)
    alone = federate(tiny_workload(config, participation=ParticipationConfig(availability=((1,),))))
    assert [task.client.id for task in alone.spy.tasks] == [1, 1, 1]
    for slot, mean in alone.spy.tasks[-1].outcome.up.items():
        for name, value in alone.state.server.slots[slot].items():
            torch.testing.assert_close(value, mean.tensors[name], rtol=0, atol=1e-15)


def test_the_defaults_are_those_of_the_papers() -> None:
    for config in (FedU.Config(), FedEMA.Config()):
        assert (config.learning_rate, config.weight_decay, config.sgd_momentum) == (
            0.032,
            5e-4,
            0.9,
        )
        assert (config.rounds, config.epochs, config.batch_size) == (100, 5, 128)
        assert (config.hidden, config.projection, config.bottleneck) == (4096, 2048, 4096)
        assert config.momentum == 0.99
    assert FedU.Config().predictor_threshold == 0.4
    assert (FedEMA.Config().scale, FedEMA.Config().autoscale) == (None, 0.7)


def test_the_rate_falls_by_half_a_cosine() -> None:
    config = FedU.Config(**SMALL, learning_rate=0.5, decay_rounds=4)
    module, rates = FedU(config, tiny_task()).build(), []
    for module.round in range(1, 6):
        rates.append(module.configure_optimizers()["optimizer"].param_groups[0]["lr"])
    assert rates == pytest.approx([0.5, 0.25 * (1 + 0.5**0.5), 0.25, 0.25 * (1 - 0.5**0.5), 0])


def weights(kind, **options) -> dict[str, torch.Tensor]:
    """What SGD trains: everything but the running statistics."""
    found = networks(ran(kind, **options))
    return {name: t for name, t in found.items() if t.is_floating_point() and "running" not in name}


@pytest.mark.parametrize("kind", [FedU, FedEMA])
def test_rounds_have_their_own_rate(kind) -> None:
    first, second = ({"rounds": rounds} for rounds in (1, 2))
    assert same_bits(weights(kind, **first, decay_rounds=2), weights(kind, **first))
    assert not same_bits(weights(kind, **second, decay_rounds=2), weights(kind, **second))


def test_a_decay_that_ends_before_the_run_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^decay_rounds=2 with rounds=3: the rate is 0 after"):
        FedU.Config(**SMALL, decay_rounds=2)
