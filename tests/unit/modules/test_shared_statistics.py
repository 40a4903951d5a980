"""DCCO and FedSC: losses, statistics, messages, and rounds against loops over all samples."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coterie.contract.accounting import epsilon
from coterie.contract.method import build_method
from coterie.contract.seeds import derive_seed
from coterie.datamodules.augmentations import DigitsAugmentation
from coterie.errors import ConfigError
from coterie.losses.correlation import (
    correlation,
    cross_correlation,
    cross_correlation_loss,
    pair_statistics,
    shared_spectral_loss,
)
from coterie.losses.spectral import bounded_rows, spectral_contrast
from coterie.modules.dcco import DCCO
from coterie.modules.fedsc import FedSC
from coterie.networks.encoders import MLP
from coterie.networks.views import two_views
from tests.builders.federation import SHAPE, SIZES, Federated, federate, tiny_workload

RATE, DECAY, WEIGHT, BOUND, ROUNDS = 0.3, 0.01, 0.2, 0.5, 3
ENCODER = MLP(hidden=(8,), features=6)
COMMON = {"rounds": ROUNDS, "epochs": 1, "batch_size": 32, "hidden": 7, "projection": 5}
SGD = {"learning_rate": RATE, "weight_decay": DECAY}
CONFIGS = {
    "dcco": DCCO.Config(**COMMON, **SGD, off_diagonal=WEIGHT),
    "fedsc": FedSC.Config(**COMMON, **SGD, bound=BOUND, least_share=0.25, share_rounds=4),
}


def workload_of(config):
    """Without BatchNorm, which a client would compute from its own batch."""
    given = tiny_workload(config)
    return replace(given, task=replace(given.task, encoder=ENCODER))


@pytest.fixture(scope="module", params=CONFIGS)
def ran(request) -> Federated:
    return federate(workload_of(CONFIGS[request.param]))


def rows(n: int = 9, d: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    u, v = torch.randn(2, n, d, dtype=torch.float64, generator=generator)
    return u, v


def test_the_correlation_is_that_of_the_samples() -> None:
    u, v = rows()
    both = torch.corrcoef(torch.cat([u, v], dim=1).T)
    torch.testing.assert_close(cross_correlation(pair_statistics(u, v)), both[:4, 4:])


def test_statistics_of_clients_are_those_of_all_samples() -> None:
    u, v = rows()
    parts = [slice(0, 2), slice(2, 6), slice(6, 9)]
    sizes = [2, 4, 3]
    for measure in (pair_statistics, lambda a, b: {"matrix": correlation(a, b)}):
        whole, each = measure(u, v), [measure(u[part], v[part]) for part in parts]
        for name, value in whole.items():
            mean = sum(n / 9 * one[name] for n, one in zip(sizes, each, strict=True))
            torch.testing.assert_close(mean, value, rtol=0, atol=1e-15)


def test_equal_whitened_views_have_no_cross_correlation_loss() -> None:
    u = torch.linalg.qr(rows(9, 4)[0] - rows(9, 4)[0].mean(dim=0))[0]
    assert cross_correlation_loss(pair_statistics(u, u), 0.7).item() == pytest.approx(0, abs=1e-12)
    assert cross_correlation_loss(pair_statistics(u, -u), 0.0).item() == pytest.approx(4.0)


def test_alone_and_for_large_batches_the_shared_spectral_loss_is_the_spectral_one() -> None:
    u, _ = rows(6, 4)
    n, zero = len(u), torch.zeros(4, 4, dtype=u.dtype)
    same = (u * u).sum(dim=1)
    # With v = u, ‖R‖² also has the n pairs of a sample with itself.
    pairs = spectral_contrast(u, u, 1e9) * 1e9 + 2 * same.mean()
    expected = -2 * same.mean() + (n * (n - 1) * pairs + same.square().sum()) / n**2
    torch.testing.assert_close(shared_spectral_loss(u, u, zero, 1.0), expected, rtol=1e-6, atol=0)


def networks_of(tensors: dict[str, Tensor]) -> nn.Sequential:
    """Encoder and projector with these parameters, as plain layers."""
    layers = [nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 6)]
    net = nn.Sequential(*layers, nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 5)).double()
    assert [p.shape for p in net.parameters()] == [t.shape for t in tensors.values()]
    with torch.no_grad():
        for p, t in zip(net.parameters(), tensors.values(), strict=True):
            p.copy_(t)
    return net


def parameters_of(slots) -> dict[str, Tensor]:
    return {n: t for slot in ("encoder", "projector") for n, t in sorted_layers(slots[slot])}


def sorted_layers(tensors):
    """Weights before biases, layer by layer, as modules list them."""
    return sorted(tensors.items(), key=lambda item: (*item[0].split(".")[:-1], item[0][-1] == "s"))


def views_of(ran: Federated, number: int) -> list[tuple[Tensor, Tensor]]:
    """Each client's two views in a round: its whole data is one batch."""
    augment, found = DigitsAugmentation().build(SHAPE), []
    for task in ran.spy.tasks:
        if task.phase.round == number and task.phase.step == 1:
            seed = derive_seed(int(task.slots["draw"]["seed"]), task.client.id)
            size = len(task.client.data)
            order = np.random.Generator(np.random.PCG64(derive_seed(seed, "order", 0)))
            samples = task.client.data.take(order.permutation(size))
            found.append(two_views(augment, samples, derive_seed(seed, "step", 0), torch.float64))
    return found


def barlow(u: Tensor, v: Tensor) -> Tensor:
    """Over all samples at once, feature by feature."""
    total = torch.zeros((), dtype=u.dtype)
    for i in range(u.shape[1]):
        for j in range(u.shape[1]):
            a, b = u[:, i] - u[:, i].mean(), v[:, j] - v[:, j].mean()
            c = (a * b).mean() / (a.square().mean() * b.square().mean()).sqrt()
            total = total + ((1 - c) ** 2 if i == j else WEIGHT * c**2)
    return total / u.shape[1]


def shortened(z: Tensor) -> Tensor:
    norms = z.norm(dim=1, keepdim=True)
    return torch.where(norms > BOUND**0.5, z / norms * BOUND**0.5, z)


def outer(z: Tensor) -> Tensor:
    return sum(torch.outer(row, row) for row in z) / len(z)


def fedsc_gradients(net, views, number: int) -> list[Tensor]:
    """The mean of the clients' gradients, each with the others' matrices."""
    pairs = [tuple(shortened(net(view)) for view in pair) for pair in views]
    matrices = [outer(torch.cat(pair)) for pair in pairs]
    share = 1 - 0.75 * (number - 1) / 4
    total = torch.zeros((), dtype=torch.float64)
    for k, (u, v) in enumerate(pairs):
        others = [j for j in range(len(SIZES)) if j != k]
        left = sum(SIZES[j] for j in others)
        mean = sum(SIZES[j] / left * matrices[j] for j in others).detach()
        loss = -2 * (u * v).sum() / len(u) + share * (matrices[k] ** 2).sum()
        loss = loss + 2 * (1 - share) * torch.trace(matrices[k] @ mean)
        total = total + SIZES[k] / sum(SIZES) * loss
    return list(torch.autograd.grad(total, list(net.parameters())))


def test_rounds_are_steps_on_all_samples(ran: Federated) -> None:
    net = networks_of(parameters_of(ran.start.slots))
    for number in range(1, ROUNDS + 1):
        views = views_of(ran, number)
        if ran.config == CONFIGS["dcco"]:
            u, v = (net(torch.cat(list(every))) for every in zip(*views, strict=True))
            gradients = list(torch.autograd.grad(barlow(u, v), list(net.parameters())))
        else:
            gradients = fedsc_gradients(net, views, number)
        with torch.no_grad():
            for p, g in zip(net.parameters(), gradients, strict=True):
                p.sub_(RATE * (g + DECAY * p))
    found = parameters_of(ran.state.server.slots)
    for p, t in zip(net.parameters(), found.values(), strict=True):
        torch.testing.assert_close(t, p.detach(), rtol=0, atol=1e-9)


def test_only_networks_and_statistics_cross(ran: Federated) -> None:
    dcco = ran.config == CONFIGS["dcco"]
    networks, names = {"encoder", "projector"}, {"u", "v", "uu", "vv", "uv"} if dcco else {"matrix"}
    for task in ran.spy.tasks:
        measures = task.phase.step == 0
        assert set(task.slots) == networks | {"draw"} | (set() if measures else {"statistics"})
        assert set(task.outcome.up) == ({"statistics"} if measures else networks)
        assert task.outcome.up.keys() == task.phase.up
        assert not task.outcome.gathered
        assert not task.outcome.peer_messages
        assert set(task.outcome.metrics) == (set() if measures else {"loss"})
        keeps = {"matrix", "samples", "seed"} if measures and not dcco else set()
        assert set(task.outcome.state or {}) == keeps
        assert {m.weight for m in task.outcome.up.values()} == {len(task.client.data)}
        if measures:
            sent = task.outcome.up["statistics"].tensors
            assert {n.split(".")[1] for n in sent} == names


def test_dccos_round_is_one_step_on_one_batch() -> None:
    small = CONFIGS["dcco"].model_copy(update={"batch_size": 10, "rounds": 1})
    ran = federate(workload_of(small))
    for task in ran.spy.tasks:
        batch = min(10, len(task.client.data))
        assert {mean.weight for mean in task.outcome.up.values()} == {batch}
    with pytest.raises(ConfigError, match="epochs"):
        DCCO.Config(epochs=2)


def test_a_client_without_others_trains_alone() -> None:
    """Nobody's matrix, or only one's own: α = 1, and nothing is taken out of the mean."""
    method = FedSC(CONFIGS["fedsc"], workload_of(CONFIGS["fedsc"]).task)
    module = method.build()
    module.begin(measures=False)
    phase = replace(method.next(method.init({0: 9}, 1)), round=3)
    seed = torch.tensor([7])
    slots = {"draw": {"seed": seed, "samples": torch.tensor([9])}}
    kept = {"matrix": torch.eye(5), "samples": torch.tensor([9]), "seed": seed}
    method.receive(module, phase, kept, slots)
    assert module.share == 1.0
    stale = {**kept, "seed": seed + 1}
    method.receive(module, phase, stale, slots)
    assert module.share == 1 - 0.75 * 2 / 4
    assert not module.shared()["matrix"].any()


def noisy(**keys):
    return CONFIGS["fedsc"].model_copy(update={"noise": 0.5, "rounds": 2, **keys})


def sent_matrices(ran: Federated) -> list[Tensor]:
    found = [task.outcome.up.get("statistics") for task in ran.spy.tasks]
    return [next(iter(mean.tensors.values())) for mean in found if mean is not None]


def test_noise_is_added_to_what_is_sent_and_kept() -> None:
    ours, theirs = (
        federate(workload_of(config)).spy.tasks[:3] for config in (noisy(), noisy(noise=0.0))
    )
    for one, other in zip(ours, theirs, strict=True):
        sent, clear = (task.outcome.up["statistics"].tensors for task in (one, other))
        moved = torch.cat([(sent[n] - clear[n]).flatten() for n in sent])
        assert 0.25 < float(moved.std()) < 0.9
        (name,) = sent
        assert torch.equal(sent[name], one.outcome.state["matrix"])


def test_noise_is_from_the_secret_and_not_from_the_seed() -> None:
    first, again, other = (
        sent_matrices(federate(workload_of(noisy()), secret)) for secret in (b"1", b"1", b"2")
    )
    assert all(map(torch.equal, first, again))
    assert not any(map(torch.equal, first, other))
    with pytest.raises(ValueError, match="compose with a NoiseLedger"):
        federate(workload_of(noisy()), b"")


def test_the_epsilon_is_that_of_one_sample_of_the_smallest_client() -> None:
    ran = federate(workload_of(noisy()))
    spent = [done.metrics["epsilon"] for done in ran.commits]
    # μ = 0.5 and 9 samples: without one of them a matrix changes by 0.5 / 9 at most.
    wanted = [epsilon(matrices, 0.5 / (0.5 / 9), 1e-5) for matrices in (1, 1, 2, 2)]
    assert spent == pytest.approx(wanted, rel=1e-4)
    without = federate(workload_of(CONFIGS["fedsc"])).commits
    assert not any("epsilon" in done.metrics for done in without)


def test_a_sample_changes_a_matrix_by_no_more_than_its_share() -> None:
    u, v = (bounded_rows(100.0 * rows_, BOUND) for rows_ in rows(9, 4))
    whole = correlation(u, v)
    without = (correlation(u[1:], v[1:]) * 8) / 9
    assert 0.1 * BOUND / 9 < float((whole - without).norm()) <= BOUND / 9


def test_noise_behind_batch_norm_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^method\.noise=0\.5: .*encoder\.norm=group"):
        federate(tiny_workload(noisy()))


@pytest.mark.parametrize("name", CONFIGS)
def test_statistics_of_an_earlier_round_are_not_used(name: str) -> None:
    """In a round whose statistics nobody has sent, a client is alone with its batch."""
    workload = workload_of(CONFIGS[name])
    method = build_method(workload.config.method, workload.task)
    server = federate(workload).state.server  # its last round has measured
    measured = replace(method.next(replace(server, round=ROUNDS - 1, step=0)), round=ROUNDS)
    assert method.next(replace(server, round=ROUNDS - 1, step=0)).ends_round is False
    training = method.next(replace(server, round=ROUNDS - 1, step=1))
    assert training.round == ROUNDS == measured.round
    fresh = method.offer(server, training)
    assert any(bool(value.any()) for value in fresh["statistics"].values())
    stale = method.offer(replace(server, metadata={**server.metadata, "measured": 1}), training)
    assert not any(bool(value.any()) for value in stale["statistics"].values())
    if name == "fedsc":
        assert (int(fresh["draw"]["samples"]), int(stale["draw"]["samples"])) == (sum(SIZES), 0)
