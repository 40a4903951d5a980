"""Training that is private for single samples: gradients, noise, executors, what is refused."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning import LightningModule
from torch import nn

from coterie.aggregation.clipping import STEPS
from coterie.aggregation.noise import Noise
from coterie.aggregation.sample_noise import SampleNoise, noisy_optimizer, noisy_training
from coterie.aggregation.stage import StageTask
from coterie.config.privacy import DPConfig, PrivacyConfig
from coterie.contract.client import Plan
from coterie.contract.phase import Phase
from coterie.errors import ConfigError, ContractError
from coterie.execution.bare_trainer import BareTrainer
from coterie.execution.trainer import LightningTrainer
from coterie.modules.fedavg import FedAvg
from tests.builders.everything import batches, fresh
from tests.builders.loops import make_workload

PLAN = Plan(batch_size=5, epochs=2)
FAINT = SampleNoise(clip=1000.0, sigma=1, epochs=2, key=bytes(range(32)))
PRIVATE = DPConfig(clip=0.5, noise_multiplier=2.0, unit="sample")
NOISE = replace(FAINT, clip=0.5, sigma=2 * STEPS)


class Plain(LightningModule):
    """Group norm, and a loss that is a mean over samples."""

    def __init__(self, *middle):
        super().__init__()
        parts = middle or (nn.GroupNorm(2, 8),)
        self.net = nn.Sequential(nn.Linear(4, 8), *parts, nn.ReLU(), nn.Linear(8, 3))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    def training_step(self, batch, batch_idx):
        return self.net(batch["samples"]).square().sum(dim=1).mean()


def trained(noise=None, trainer=None, **plan):
    module, given_ = fresh(Plain), batches(**plan)
    trainer = trainer or BareTrainer()
    if noise is None:
        trainer.fit(module, given_, seed=17)
    else:
        with noisy_training(module, PLAN, noise, PLAN.epochs):
            trainer.fit(module, given_, seed=17)
    return module


def weights(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def optimizer_over(grads, noise):
    parameters = [nn.Parameter(torch.zeros(g.shape[1:])) for g in grads]
    found = noisy_optimizer(torch.optim.SGD(parameters, lr=1.0), noise, batch_size=2)
    for parameter, grad in zip(parameters, grads, strict=True):
        parameter.grad_sample = grad
    return found, parameters


def summed(grads, noise=NOISE):
    found, parameters = optimizer_over(grads, noise)
    found.clip_and_accumulate()
    return torch.cat([p.summed_grad.flatten() for p in parameters])


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.sampled_from([1e-4, 1.0, 1e6, 1e30]), st.booleans())
def test_one_sample_changes_a_step_by_the_clip_norm_at_most(seed, size, broken):
    generator = torch.Generator().manual_seed(seed)
    grads = [size * torch.randn(6, *shape, generator=generator) for shape in ((3, 4), (5,))]
    if broken:
        grads[0][0, 0, 0] = float("nan")
        grads[1][0, 0] = float("inf")
    change = summed(grads) - summed([g[1:] for g in grads])
    assert sum(int(x) ** 2 for x in change) <= STEPS**2


@pytest.mark.parametrize("value", [1.0, 0.1, 3e-4])
def test_the_clip_norm_holds_for_millions_of_equal_entries(value):
    change = summed([torch.full((1, 4_000_000), value)]).double()
    assert 0.999 * STEPS < float(change.square().sum().sqrt()) <= STEPS


def test_short_gradients_are_not_clipped():
    grads = [torch.tensor([[0.3, 0.0], [0.0, -0.25]])]
    found = summed(grads).double() * (NOISE.clip / STEPS)
    assert found.tolist() == pytest.approx([0.3, -0.25], abs=1e-5)


def test_the_noise_has_its_deviation_and_is_divided_by_the_batch():
    found, (parameter,) = optimizer_over([torch.zeros(2, 20_000)], NOISE)
    found.step()
    steps = -parameter.detach()  # by a rate of 1
    assert float(steps.std()) == pytest.approx(2 * NOISE.clip / 2, rel=0.03)
    assert abs(float(steps.mean())) < 0.05


def test_without_clipping_and_noise_it_is_plain_training():
    plain = weights(trained(steps=4))  # four whole batches: a smaller one is divided by the same
    assert torch.allclose(weights(trained(FAINT, steps=4)), plain, atol=1e-3)
    assert not torch.allclose(weights(trained(NOISE, steps=4)), plain, atol=1e-2)


def test_both_executors_give_the_same_bits():
    assert torch.equal(
        weights(trained(NOISE, BareTrainer())), weights(trained(NOISE, LightningTrainer()))
    )


def test_noise_follows_the_key_and_the_sum():
    assert torch.equal(weights(trained(NOISE)), weights(trained(NOISE)))
    other = replace(NOISE, key=bytes(32))
    assert not torch.equal(weights(trained(NOISE)), weights(trained(other)))
    noises = []
    for change in (0.0, 0.25):
        grads = [torch.zeros(2, 1000)]
        grads[0][0, 0] = change
        found, (parameter,) = optimizer_over(grads, NOISE)
        found.step()
        noises.append(parameter.detach()[1:])
    assert not torch.equal(*noises)


def test_nothing_is_left_on_the_module():
    module = trained(NOISE)
    assert "configure_optimizers" not in vars(module)
    assert not any(part._forward_hooks or part._backward_hooks for part in module.modules())
    assert not any(hasattr(p, "grad_sample") for p in module.parameters())


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(8), nn.BatchNorm1d(8, affine=False)])
def test_what_mixes_samples_is_refused(norm):
    with (
        pytest.raises(ConfigError, match=r"privacy.dp.unit=sample: net.1 is a BatchNorm1d"),
        noisy_training(Plain(norm), PLAN, NOISE, PLAN.epochs),
    ):
        pass


def test_an_optimiser_that_is_no_single_one_is_refused():
    module = fresh(Plain)
    module.configure_optimizers = lambda: ([], [])
    with (
        noisy_training(module, PLAN, NOISE, PLAN.epochs),
        pytest.raises(ConfigError, match="configure_optimizers gave a tuple; return one"),
    ):
        module.configure_optimizers()


@pytest.mark.parametrize(
    "plans",
    [
        [Plan(batch_size=5, epochs=3)],
        [Plan(batch_size=5, steps=4)],
        [Plan(batch_size=5, epochs=1), Plan(batch_size=5, epochs=2)],
        [Plan(batch_size=5, epochs=1)] * 3,
    ],
)
def test_training_that_is_not_paid_for_is_refused(plans):
    task = StageTask(
        phase=Phase(name="p", stage="s", round=1),
        client=0,
        samples=5,
        seed=0,
        received={},
        layouts={},
        data=NOISE,
    )
    config = make_workload(FedAvg.Config(), privacy=PrivacyConfig(dp=PRIVATE)).config
    *paid, last = plans
    for plan in paid:
        with Noise(config).training(fresh(Plain), plan, task):
            pass
    with (
        pytest.raises(ContractError, match="covers 2 epochs per task; train for no more"),
        Noise(config).training(fresh(Plain), last, task),
    ):
        pass


def test_trainings_of_one_task_have_noise_of_their_own():
    seen = []
    for epochs in (1, 2):
        module = fresh(Plain)
        with noisy_training(module, Plan(batch_size=5, epochs=1), NOISE, epochs):
            BareTrainer().fit(module, batches(), seed=17)
        seen.append(weights(module))
    assert not torch.equal(*seen)
