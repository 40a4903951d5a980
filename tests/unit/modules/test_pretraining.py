"""SimCLR, BYOL and SimSiam: losses, targets, predictors, messages, resumption."""

import math

import pytest
import torch
from torch import nn

from coterie.checkpoints.checkpoint import load_checkpoint
from coterie.execution.packing import unpack
from coterie.execution.serial import SerialBackend
from coterie.modules.byol import BYOL, Bootstrap, FedBYOL
from coterie.modules.pretraining import divergence
from coterie.modules.simclr import FedSimCLR, SimCLR
from coterie.modules.simsiam import FedSimSiam, SimSiam
from coterie.networks.resnet import ResNet
from coterie.rounds.loop import Loop
from coterie.rounds.state import RunState
from tests.builders import slow_losses
from tests.builders.checkpoints import save
from tests.builders.federation import (
    SIZES,
    Federated,
    federate,
    same_bits,
    tiny_task,
    tiny_workload,
)
from tests.builders.modules import fit
from tests.builders.modules import random_views as views
from tests.builders.observers import Silent

SMALL = {"hidden": 7, "projection": 5, "batch_size": 8}
SHORT = {**SMALL, "epochs": 1, "rounds": 2}
CENTRAL, FEDERATED = (SimCLR, BYOL, SimSiam), (FedSimCLR, FedBYOL, FedSimSiam)


def module(kind, **config):
    torch.manual_seed(0)
    built = kind(kind.Config(**SMALL, **config), tiny_task()).build()
    built.on_train_epoch_start()
    return built


def projections(network: nn.Module, batch):
    with torch.no_grad():
        return [network(view) for view in batch]


def byol(**config) -> Bootstrap:
    """A module whose target differs from its online network."""
    built = module(BYOL, **config)
    other = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for p in built.target.parameters():
            p.add_(torch.randn(p.shape, dtype=p.dtype, generator=other), alpha=0.3)
    return built


def test_simclr_is_the_cross_entropy_over_all_views() -> None:
    built, batch = module(SimCLR, temperature=0.3), views()
    expected = slow_losses.nt_xent(*projections(built.online, batch), 0.3)
    assert built.training_step(batch, 0)["loss"].item() == pytest.approx(expected, rel=1e-12)


def test_simclr_of_equal_projections_is_the_log_of_all_others() -> None:
    built = module(SimCLR)
    nn.init.zeros_(built.online.projector.layers[-1].weight)
    nn.init.ones_(built.online.projector.layers[-1].bias)
    assert built.training_step(views(7), 0)["loss"].item() == pytest.approx(math.log(13), rel=1e-12)


def test_byol_sums_and_simsiam_averages_both_directions() -> None:
    batch = views()
    for kind, built in ((BYOL, byol()), (SimSiam, module(SimSiam))):
        z = projections(built.target if kind is BYOL else built.online, batch)
        with torch.no_grad():
            p = [built.predictor(built.online(view)) for view in batch]
        terms = [
            sum(slow_losses.cosine(a, b) for a, b in zip(p[i], z[1 - i], strict=True)) / 7
            for i in (0, 1)
        ]
        expected = 4 - 2 * sum(terms) if kind is BYOL else -0.5 * sum(terms)
        assert built.training_step(batch, 0)["loss"].item() == pytest.approx(expected, rel=1e-12)


def test_with_equal_networks_byol_is_four_and_four_times_simsiam() -> None:
    batch, one, other = views(), module(BYOL, projector_norm="all"), module(SimSiam)
    other.online.load_state_dict(one.online.state_dict())
    other.predictor.load_state_dict(one.predictor.state_dict())
    expected = 4 + 4 * other.training_step(batch, 0)["loss"].item()
    assert one.training_step(batch, 0)["loss"].item() == pytest.approx(expected, rel=1e-12)


def test_simsiams_projections_are_centred_and_byols_are_not() -> None:
    for kind, centred in ((SimSiam, True), (BYOL, False), (SimCLR, False)):
        z = projections(module(kind).online, views())[0]
        assert (z.mean(0).abs().max().item() < 1e-12) is centred
        assert bool((z.var(0, unbiased=False) > 0.99).all()) is centred


@pytest.mark.parametrize("kind", CENTRAL)
def test_everything_but_the_target_is_trained(kind) -> None:
    built = module(kind)
    built.training_step(views(), 0)["loss"].backward()
    trained = {n for n, p in built.named_parameters() if p.grad is not None and p.grad.any()}
    everything = {n for n, _ in built.named_parameters() if not n.startswith("target.")}
    assert trained == everything
    stepped = sum(len(g["params"]) for g in built.configure_optimizers().param_groups)
    assert stepped == len(everything)


def test_the_optimiser_is_that_of_the_config() -> None:
    adam = module(SimCLR, weight_decay=0.1).configure_optimizers()
    assert type(adam) is torch.optim.Adam
    sgd = module(FedSimCLR).configure_optimizers()
    assert type(sgd) is torch.optim.SGD
    found = {key: sgd.defaults[key] for key in ("lr", "momentum", "weight_decay")}
    assert found == {"lr": 0.03, "momentum": 0.9, "weight_decay": 1e-4}
    assert (adam.defaults["lr"], adam.defaults["weight_decay"]) == (1e-3, 0.1)


def test_the_target_is_the_moving_average_of_the_online_parameters() -> None:
    built = byol(momentum=0.9)
    expected = [p.clone() for p in built.target.parameters()]

    def check() -> None:
        for value, online in zip(expected, built.online.parameters(), strict=True):
            value.copy_(0.9 * value + 0.1 * online.detach())

    fit(built, check=check)
    for value, target in zip(expected, built.target.parameters(), strict=True):
        torch.testing.assert_close(target.detach(), value, rtol=0, atol=1e-13)


@pytest.mark.parametrize("momentum", [0.0, 1.0])
def test_the_ends_of_the_moving_average(momentum: float) -> None:
    built = byol(momentum=momentum)
    start = [p.clone() for p in built.target.parameters()]
    fit(built)
    wanted = start if momentum == 1.0 else list(built.online.parameters())
    assert all(map(torch.equal, built.target.parameters(), wanted))


@pytest.fixture(scope="module")
def kept() -> Federated:
    return federate(tiny_workload(FedBYOL.Config(**SHORT, predictor_threshold=None)))


def target_of(tensors) -> dict[str, torch.Tensor]:
    return {name: t for name, t in tensors.items() if name.startswith("target.")}


def test_a_target_stays_with_its_client(kept: Federated) -> None:
    for task in kept.spy.tasks:
        given = task.client.state
        assert (given is None) is (task.phase.round == 1)
        if given is not None:
            before = next(
                t.outcome.state
                for t in kept.spy.tasks
                if t.client.id == task.client.id and t.phase.round == task.phase.round - 1
            )
            assert same_bits(given, before)


def test_a_latecomers_target_starts_as_the_global_model_of_its_round(kept: Federated) -> None:
    method = kept.spy.method
    module = method.global_module(kept.state.server)
    assert not same_bits(dict(module.target.state_dict()), dict(module.online.state_dict()))
    method.restore(module, {})
    assert same_bits(dict(module.target.state_dict()), dict(module.online.state_dict()))
    method.restore(module, kept.kept[0])
    restored = {n: t for n, t in module.state_dict().items() if n in kept.kept[0]}
    assert same_bits(restored, kept.kept[0])


def test_an_averaged_target_is_part_of_the_message() -> None:
    ran = federate(
        tiny_workload(FedBYOL.Config(**SHORT, target_network="averaged", predictor_threshold=None))
    )
    assert ran.state.states == {}
    for task in ran.spy.tasks:
        assert set(task.outcome.up) == {"encoder", "projector", "predictor", "target"}
        assert target_of(task.outcome.up["target"].tensors) == task.outcome.up["target"].tensors
    assert not same_bits(ran.start.slots["target"], ran.state.server.slots["target"])


@pytest.mark.parametrize("kind", [FedBYOL, FedSimSiam])
@pytest.mark.parametrize("threshold", [0.0, 1e6])
def test_who_moved_far_goes_on_with_its_own_predictor(kind, threshold: float) -> None:
    ran = federate(tiny_workload(kind.Config(**SHORT, predictor_threshold=threshold)))
    free = federate(tiny_workload(kind.Config(**SHORT, predictor_threshold=None)))
    for task in ran.spy.tasks:
        own = task.outcome.up["predictor"].tensors
        state = task.outcome.state or {}
        found = {name: t for name, t in state.items() if name.startswith("predictor.")}
        assert same_bits(found, own) if threshold == 0.0 else found == {}
    ours, theirs = (one.state.server.slots["encoder"] for one in (ran, free))
    assert same_bits(ours, theirs) is (threshold > 0)


@pytest.mark.parametrize("kind", [FedBYOL, FedSimSiam])
def test_who_moved_far_once_takes_the_global_predictor_again_after_a_near_turn(
    kind, monkeypatch
) -> None:
    moves, original, started = iter([0.5] * 3 + [0.3] * 6), kind.restore, []

    def restore(self, module, kept) -> None:
        original(self, module, kept)
        named = module.predictor.named_parameters()
        started.append({f"predictor.{name}": p.detach().clone() for name, p in named})

    monkeypatch.setattr("coterie.modules.pretraining.divergence", lambda *_: next(moves))
    monkeypatch.setattr(kind, "restore", restore)
    ran = federate(tiny_workload(kind.Config(**{**SHORT, "rounds": 3}, predictor_threshold=0.4)))
    for index, task in enumerate(ran.spy.tasks):
        before, given = ran.spy.tasks[index - 3], task.slots["predictor"]
        own = given if task.phase.round == 1 else before.outcome.up["predictor"].tensors
        wanted = own if task.phase.round == 2 else given
        assert same_bits(started[index], {name: wanted[name] for name in started[index]})
        assert task.phase.round == 1 or not same_bits(given, own)


@pytest.mark.parametrize("kind", FEDERATED)
def test_the_rate_follows_the_share_of_clients_that_take_part(kind) -> None:
    built = module(kind, learning_rate=0.01, participation=0.1, base_participation=0.4)
    assert built.learning_rate == pytest.approx(0.005)
    assert built.configure_optimizers().param_groups[0]["lr"] == pytest.approx(0.005)


def test_divergence_is_the_mean_distance_of_kernels() -> None:
    built = module(SimSiam)
    before = {n: t.clone() for n, t in built.state_dict().items()}
    with torch.no_grad():
        for weight in (
            built.online.encoder.network[1].weight,
            built.online.encoder.network[4].weight,
        ):
            weight.add_(3.0 / math.sqrt(weight.numel()) * (1 + (weight.numel() > 100)))
        built.online.encoder.network[4].bias.add_(100.0)
    assert divergence(built, before) == pytest.approx((6.0 + 3.0) / 2, rel=1e-12)
    built.online.encoder.network[1] = nn.Unflatten(1, (1, 64))
    kernel = nn.Conv1d(1, 2, 3, dtype=torch.float64)
    built.online.encoder.network[2] = kernel
    before = {n: t.clone() for n, t in built.state_dict().items()}
    with torch.no_grad():
        kernel.weight.add_(0.5)
    assert divergence(built, before) == pytest.approx(0.5 * math.sqrt(6), rel=1e-12)


def test_kernels_of_shortcuts_count_for_nothing() -> None:
    """As in EasyFL: kernels of 1×1 in a block of ResNet-50 count, its `downsample` does not."""
    built = module(SimSiam)
    built.online.encoder = ResNet(depth=50).build((3, 32, 32)).double()
    before = {n: t.clone() for n, t in built.state_dict().items()}
    moved = {n: p for n, p in built.online.encoder.named_parameters() if p.ndim > 2}
    assert sum("downsample" in name for name in moved) == 4
    with torch.no_grad():
        for name, kernel in moved.items():
            kernel.add_((50.0 if "downsample" in name else 2.0) / math.sqrt(kernel.numel()))
    assert divergence(built, before) == pytest.approx(2.0, rel=1e-9)


@pytest.mark.parametrize(("central", "federated"), list(zip(CENTRAL, FEDERATED, strict=True)))
def test_the_defaults_are_those_of_the_papers(central, federated) -> None:
    alone, silos = central.Config(), federated.Config()
    assert (alone.optimizer, alone.learning_rate, alone.batch_size) == ("adam", 1e-3, 500)
    assert alone.rounds * alone.epochs == 300
    assert (silos.optimizer, silos.learning_rate, silos.weight_decay) == ("sgd", 0.03, 1e-4)
    assert (silos.rounds, silos.epochs, silos.batch_size, silos.participation) == (
        100,
        10,
        256,
        1.0,
    )
    heads = {(config.hidden, config.projection) for config in (alone, silos)}
    assert heads == ({(256, 256)} if central is SimCLR else {(512, 512)})
    norm = {SimCLR: "none", BYOL: "hidden", SimSiam: "all"}[central]
    assert {config.projector_norm for config in (alone, silos)} == {norm}
    if central is SimCLR:
        assert alone.temperature == silos.temperature == 0.1
    else:
        assert (alone.bottleneck, alone.predictor_threshold) == (64, None)
        assert silos.predictor_threshold == 0.4
    if central is BYOL:
        assert (alone.momentum, silos.momentum, alone.target_network) == (0.9, 0.99, "kept")


SCALAR = 8
NORM = 4 * 7  # weight, bias, mean, variance of the projector's BatchNorm
NUMBERS = {
    # Linear 64→8 without bias, BatchNorm, Linear 8→6.
    "encoder": 64 * 8 + 4 * 8 + (8 * 6 + 6),
    "projector": 6 * 7 + NORM + (7 * 5 + 5),
    "predictor": 5 * 3 + 4 * 3 + (3 * 5 + 5),
}
CENTRED = {**NUMBERS, "projector": NUMBERS["projector"] + 2 * 5}  # mean and variance
PLAIN = {**NUMBERS, "projector": 6 * 7 + 7 + (7 * 5 + 5)}  # SimCLR's has a bias and no BatchNorm
CASES = {
    "FedSimCLR": (FedSimCLR.Config(**SHORT), {k: PLAIN[k] for k in ("encoder", "projector")}),
    "FedSimSiam": (FedSimSiam.Config(**SHORT, bottleneck=3), CENTRED),
    "FedBYOL": (FedBYOL.Config(**SHORT, bottleneck=3), NUMBERS),
    "FedBYOL, target averaged": (
        FedBYOL.Config(**SHORT, bottleneck=3, target_network="averaged"),
        {**NUMBERS, "target": NUMBERS["encoder"] + NUMBERS["projector"]},
    ),
}
PREFIXES = {
    "encoder": ("online.encoder.",),
    "projector": ("online.projector.",),
    "predictor": ("predictor.",),
    "target": ("target.encoder.", "target.projector."),
}


@pytest.fixture(scope="module", params=CASES)
def ran(request) -> tuple[Federated, dict[str, int]]:
    config, numbers = CASES[request.param]
    return federate(tiny_workload(config)), numbers


def test_only_the_declared_networks_cross(ran) -> None:
    federated, numbers = ran
    assert len(federated.spy.tasks) == 2 * len(SIZES)
    for task in federated.spy.tasks:
        up = {slot: mean.tensors for slot, mean in task.outcome.up.items()}
        for sent in (task.slots, up):
            assert set(sent) == set(numbers)
            for slot, tensors in sent.items():
                assert all(name.startswith(PREFIXES[slot]) for name in tensors)
                assert sum(t.numel() for t in tensors.values()) == numbers[slot]
                assert not [name for name in tensors if "num_batches" in name]
        assert task.outcome.gathered == {}
        assert task.outcome.peer_messages == {}
        assert set(task.outcome.metrics) == {"loss"}
        assert task.client.data.labels is None


def test_bytes_are_those_counted_by_hand(ran) -> None:
    federated, numbers = ran
    everyone = SCALAR * len(SIZES)
    for commit in federated.commits:
        assert commit.traffic.down == {slot: everyone * n for slot, n in numbers.items()}
        up = {slot: everyone * (n + 1) for slot, n in numbers.items()}
        assert commit.traffic.up == {**up, "metrics": everyone}
        assert commit.traffic.peer == {}


CONFIG = FedBYOL.Config(
    rounds=3,
    epochs=1,
    batch_size=8,
    hidden=7,
    projection=5,
    predictor_threshold=0.1,
    participation=0.6,
)


class Crash(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("phases", [1, 2])
def test_it_resumes_to_the_same_bits(tmp_path, phases: int) -> None:
    workload = tiny_workload(CONFIG)
    whole = federate(workload)
    backend = SerialBackend(workload, lambda: None)

    def commit(state: RunState, _: object) -> None:
        if state.phases == phases:
            save(tmp_path, state, backend, keep=1)
            raise Crash

    loop = Loop(backend.worker.method, backend, workload, Silent(), commit)
    with pytest.raises(Crash):
        loop.run(RunState(server=whole.start))
    again = SerialBackend(workload, lambda: None)
    torch.rand(3)
    state = load_checkpoint(tmp_path, again).state
    Loop(again.worker.method, again, workload, Silent(), lambda *_: None).run(state)
    assert state.server.round == 3
    for slot, tensors in whole.state.server.slots.items():
        assert same_bits(tensors, state.server.slots[slot])
    kept = {client: unpack(handle) for client, handle in state.states.items()}
    assert kept.keys() == whole.kept.keys()
    assert all(same_bits(kept[client], whole.kept[client]) for client in kept)
    assert any("predictor" in name for tensors in kept.values() for name in tensors)
