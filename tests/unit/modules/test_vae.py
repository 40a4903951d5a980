"""The VAE: its loss and rounds against slow ones from the paper, its draws, and what is sent."""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from coterie.contract import Plan, Task
from coterie.contract.client import Batch
from coterie.contract.seeds import derive_seed
from coterie.modules.vae import VAE, Variational, cross_entropy, divergence
from coterie.networks.encoders import MLP
from coterie.networks.gan import build_generator
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

LATENT = 3
CONFIG = VAE.Config(latent=LATENT, hidden=7, width=2, batch_size=8, epochs=2, rounds=2)
VECTORS = replace(tiny_task(), shape=(5,), encoder=MLP(hidden=(8,), features=6))


@pytest.fixture(scope="module")
def ran() -> Federated:
    return federate(tiny_workload(CONFIG))


def built(task: Task) -> Variational:
    torch.manual_seed(0)
    return VAE(CONFIG, task).build()


def samples_of(task: Task, count: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    if len(task.shape) == 3:
        return torch.randint(256, (count, *task.shape), generator=generator, dtype=torch.uint8)
    return torch.randn(count, *task.shape, generator=generator, dtype=torch.float64)


def noise_of(seed: int, count: int) -> Tensor:
    draw = torch.Generator().manual_seed(derive_seed(seed, "noise"))
    return torch.randn(count, LATENT, generator=draw, dtype=torch.float64)


def slow_kl(mean: Tensor, log_variance: Tensor) -> Iterator[Tensor]:
    """Each sample's KL(N(μ, σ²) ‖ N(0, 1)), by PyTorch's distributions."""
    for m, v in zip(mean, log_variance, strict=True):
        own = torch.distributions.Normal(m, v.exp().sqrt())
        standard = torch.distributions.Normal(torch.zeros_like(m), torch.ones_like(m))
        yield torch.distributions.kl_divergence(own, standard).sum()


def slow_error(rebuilt: Tensor, sample: Tensor) -> Tensor:
    """−log p(x|z): Bernoulli values of images, normal ones of vectors without their constant."""
    values = list(zip(rebuilt.flatten(), sample.flatten(), strict=True))
    if sample.ndim == 3:
        return -sum(x * torch.log(y) + (1 - x) * torch.log(1 - y) for y, x in values)
    constant = 0.5 * math.log(2 * math.pi)
    return -sum(torch.distributions.Normal(y, 1.0).log_prob(x) + constant for y, x in values)


@pytest.mark.parametrize("task", [tiny_task(), VECTORS], ids=["images", "vectors"])
def test_the_loss_is_the_negative_lower_bound(task: Task) -> None:
    module, samples = built(task), samples_of(task)
    found = module.training_step({"samples": samples, "seed": 7}, 0)
    x = samples.double() / 255 if samples.dtype == torch.uint8 else samples
    features = module.encoder.backbone(x)
    mean, log_variance = module.encoder.latent(features), module.log_variance(features)
    z = mean + (log_variance / 2).exp() * noise_of(7, len(x))
    error = sum(slow_error(y, one) for y, one in zip(module.decoder(z), x, strict=True)) / len(x)
    kl = sum(slow_kl(mean, log_variance)) / len(x)
    assert kl > 0.01
    assert set(found) == {"loss", "reconstruction", "kl"}
    for name, wanted in (("reconstruction", error), ("kl", kl), ("loss", error + kl)):
        assert found[name].item() == pytest.approx(wanted.item(), rel=1e-10)


def test_the_divergence_is_that_of_samples() -> None:
    """KL = E_z [log q(z) − log p(z)], by 200,000 draws of z."""
    mean, log_variance = torch.tensor([[0.7]]), torch.tensor([[-1.2]])
    own = torch.distributions.Normal(mean, (log_variance / 2).exp())
    torch.manual_seed(0)
    z = own.sample(torch.Size([200_000]))
    standard = torch.distributions.Normal(0.0, 1.0)
    drawn = (own.log_prob(z) - standard.log_prob(z)).mean()
    assert divergence(mean, log_variance).item() == pytest.approx(drawn.item(), abs=0.01)
    assert divergence(torch.zeros(2, 3), torch.zeros(2, 3)).item() == 0


def test_the_cross_entropy_of_sure_and_wrong_values_is_finite_and_exact() -> None:
    """In bfloat16 a sigmoid of 20 is 1, whose complement has no logarithm."""
    logits = torch.tensor([[20.0, -20.0, 300.0]], dtype=torch.bfloat16, requires_grad=True)
    samples = torch.tensor([[0.0, 1.0, 0.25]], dtype=torch.bfloat16)
    found = cross_entropy(logits, samples)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(20 + 20 + 0.75 * 300, rel=1e-6)
    found.backward()
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad.float(), torch.tensor([[1.0, -1.0, 0.75]]))


@pytest.mark.parametrize("task", [tiny_task(), VECTORS], ids=["images", "vectors"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_terms_are_in_float32_whatever_the_networks_precision(
    dtype: torch.dtype, task: Task
) -> None:
    module = built(replace(task, dtype=dtype))
    batch = {"samples": samples_of(task), "seed": 7}
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.float32):
        found = module.training_step(batch, 0)
    exact = built(task).training_step(batch, 0)
    for name, value in found.items():
        assert value.dtype == torch.float32
        assert value.item() == pytest.approx(exact[name].item(), rel=0.05)


def test_noise_is_of_the_batchs_seed_and_of_each_sample() -> None:
    module, one = built(tiny_task()), samples_of(tiny_task(), 1)
    nn.init.constant_(module.log_variance.bias, 2.0)
    codes: list[Tensor] = []
    module.decoder[0].register_forward_pre_hook(lambda _, given: codes.append(given[0]))
    same = one.expand(4, *SHAPE)
    for seed in (1, 1, 2):
        module.eval().training_step({"samples": same, "seed": seed}, 0)
    assert torch.equal(codes[0], codes[1])
    assert len(torch.cat(codes[1:]).unique(dim=0)) == 8


def test_means_and_log_variances_cross_with_the_decoder_and_clients_keep_nothing(
    ran: Federated,
) -> None:
    for task in ran.spy.tasks:
        assert set(task.slots) == set(task.outcome.up) == {"encoder", "log_variance", "decoder"}
        assert not task.outcome.gathered
        assert set(task.outcome.metrics) == {"loss", "reconstruction", "kl"}
        assert task.outcome.state is None


def test_two_rounds_are_those_of_a_plain_loop(ran: Federated) -> None:
    def step(net: Any, batch: Batch, _: int) -> Tensor:
        x = batch["samples"].double() / 255
        features = net["encoder"]["backbone"](x)
        mean, log_variance = net["encoder"]["latent"](features), net["log_variance"](features)
        noise = noise_of(batch["seed"], len(x))
        rebuilt = net["decoder"](mean + log_variance.exp().sqrt() * noise)
        binary = nn.functional.binary_cross_entropy(rebuilt, x, reduction="none")
        return binary.flatten(1).sum(dim=1).mean() + sum(slow_kl(mean, log_variance)) / len(x)

    encoder = {"backbone": TinyEncoder().build(SHAPE), "latent": nn.Linear(6, LATENT)}
    networks = {
        "encoder": nn.ModuleDict(encoder),
        "log_variance": nn.Linear(6, LATENT),
        "decoder": build_generator(SHAPE, LATENT, 7, 2),
    }
    world, workload = loaded(networks, ran.start.slots), tiny_workload(CONFIG)
    for number in (1, 2):
        plan, adam = Plan(batch_size=8, epochs=2), partial(torch.optim.Adam, lr=1e-3)
        average_round(world, workload, (number, 0), plan, step, adam)
    assert_same_weights(world, ran.state.server.slots, 1e-9)


def test_the_means_are_evaluated(ran: Federated) -> None:
    model = ran.spy.model_for(ran.state.server, None).eval()
    samples = torch.from_numpy(ran.backend.worker.samples["train"])
    sent = ran.state.server.slots["encoder"]
    features = model.encoder.backbone(samples.double() / 255)
    means = features @ sent["encoder.latent.weight"].T + sent["encoder.latent.bias"]
    torch.testing.assert_close(model(samples).embedding, means)
    assert (model(samples).probabilities, means.shape) == (None, (sum(SIZES), LATENT))
