"""MCC's target network: its moving average, no gradient, buffers of its own, stages."""

import copy

import pytest
import torch
from torch import Tensor, nn

from modules.mcc import PARTS
from tests.small_federation import same_bits
from tests.small_modules import fit
from tests.small_modules import momentum_module as module
from tests.small_modules import random_views as views

STAGES = tuple(PARTS)


@pytest.mark.parametrize("stage", STAGES)
def test_momentum_one_keeps_the_targets_parameters(stage: str) -> None:
    built = module(stage, momentum=1.0)
    before = copy.deepcopy(built)
    fit(built)
    for name, value in built.target.named_parameters():
        assert torch.equal(value, before.target.get_parameter(name)), name
    part = PARTS[stage][-1]
    moved = zip(
        built.online.get_submodule(part).parameters(),
        before.online.get_submodule(part).parameters(),
        strict=True,
    )
    assert not any(torch.equal(a, b) for a, b in moved)


@pytest.mark.parametrize("stage", STAGES)
def test_momentum_zero_copies_the_online_network_after_each_step(stage: str) -> None:
    built = module(stage, momentum=0.0)
    seen = []

    def check() -> None:
        for part in PARTS[stage]:
            target, online = built.target.get_submodule(part), built.online.get_submodule(part)
            pairs = zip(target.parameters(), online.parameters(), strict=True)
            seen.append(all(torch.equal(t, o) for t, o in pairs))

    fit(built, check=check)
    assert seen == [True] * 6 * len(PARTS[stage])


def test_the_target_is_the_moving_average_of_the_online_parameters() -> None:
    built = module(momentum=0.9)
    expected = [p.clone() for p in built.target.parameters()]
    steps = []

    def check() -> None:
        steps.append(1)
        for value, online in zip(expected, built.online.parameters(), strict=True):
            value.copy_(0.9 * value + 0.1 * online.detach())

    fit(built, check=check)
    assert len(steps) == 6
    for value, target in zip(expected, built.target.parameters(), strict=True):
        torch.testing.assert_close(target.detach(), value, rtol=0, atol=1e-13)


@pytest.mark.parametrize("stage", STAGES)
def test_no_gradient_reaches_what_the_stage_does_not_train(stage: str) -> None:
    built = module(stage)
    built.training_step(views(), 0)["loss"].backward()
    graded = {name for name, p in built.named_parameters() if p.grad is not None}
    trained = {
        f"online.{part}.{name}"
        for part in PARTS[stage]
        for name, _ in built.online.get_submodule(part).named_parameters()
    }
    assert graded == trained
    groups = built.configure_optimizers().param_groups
    stepped = {id(p) for group in groups for p in group["params"]}
    assert stepped == {id(p) for name, p in built.named_parameters() if name in trained}


def test_the_target_keeps_running_statistics_of_its_own() -> None:
    built = module("representation", momentum=0.5)
    norms = {net: getattr(built, net).encoder.network[2] for net in ("online", "target")}
    means = {net: norm.running_mean.clone() for net, norm in norms.items()}
    variances = {net: norm.running_var.clone() for net, norm in norms.items()}

    def track(net: str):
        def hook(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            batch = inputs[0].detach()
            means[net] = 0.9 * means[net] + 0.1 * batch.mean(dim=0)
            variances[net] = 0.9 * variances[net] + 0.1 * batch.var(dim=0)

        return hook

    for net, norm in norms.items():
        norm.register_forward_pre_hook(track(net))
    fit(built)
    for net, norm in norms.items():
        torch.testing.assert_close(norm.running_mean, means[net], rtol=0, atol=1e-12)
        torch.testing.assert_close(norm.running_var, variances[net], rtol=0, atol=1e-12)
    assert (means["online"] - means["target"]).abs().max() > 1e-4


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_changes_only_its_own_parts(stage: str) -> None:
    built = module(stage)
    before = copy.deepcopy(built)
    fit(built)
    for net in ("online", "target"):
        for part in PARTS["joint"]:
            parts = [getattr(m, net).get_submodule(part).state_dict() for m in (built, before)]
            assert same_bits(*parts) is (part not in PARTS[stage]), (net, part)


def test_stage_two_needs_no_target_encoder() -> None:
    built, other = module("clustering"), module("clustering")
    with torch.no_grad():
        for parameter in other.target.encoder.parameters():
            parameter.fill_(torch.nan)
    found = [m.training_step(views(), 0)["loss"] for m in (built, other)]
    assert torch.equal(*found)
