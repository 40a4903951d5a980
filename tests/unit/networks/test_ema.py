"""EMA: exact ends, the closed form, buffers left alone, bfloat16, refusals."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from coterie.commands.compose import compose
from coterie.errors import ConfigError, ContractError
from coterie.networks.ema import update_ema
from coterie.networks.encoders import ConvNet3
from coterie.run.setup import assemble


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


def bits(module: nn.Module) -> list[bytes]:
    return [p.detach().numpy().tobytes() for p in module.parameters()]


def awkward(seed: int) -> nn.Module:
    """A network with values that arithmetic would change: -0.0, infinity, the smallest number."""
    module = network(seed)
    with torch.no_grad():
        module[0].weight[0] = torch.tensor([-0.0, torch.inf, -torch.inf, 1e-45])
    return module


def test_momentum_one_changes_no_bit() -> None:
    target, online = awkward(0), network(1)
    before = bits(target)
    update_ema(target, online, 1.0)
    assert bits(target) == before


def test_momentum_zero_copies_every_bit() -> None:
    for target, online in ((network(0), awkward(1)), (awkward(0), network(1))):
        update_ema(target, online, 0.0)
        assert bits(target) == bits(online)
        assert target[0].weight.data_ptr() != online[0].weight.data_ptr()


@settings(max_examples=25)
@given(st.floats(0.0, 1.0))
def test_equal_networks_stay_equal(momentum: float) -> None:
    target = network(3)
    online = copy.deepcopy(target)
    update_ema(target, online, momentum)
    assert bits(target) == bits(online)


@pytest.mark.parametrize("momentum", [0.3, 0.5, 0.988, 0.996])
def test_closed_form_after_many_steps(momentum: float) -> None:
    target, online = network(0).double(), network(1).double()
    start = [p.detach().clone() for p in target.parameters()]
    for _ in range(20):
        update_ema(target, online, momentum)
    for new, old, fixed in zip(target.parameters(), start, online.parameters(), strict=True):
        weight = momentum**20
        torch.testing.assert_close(new, weight * old + (1 - weight) * fixed, rtol=1e-12, atol=1e-14)


def test_buffers_and_the_online_network_are_left_alone() -> None:
    target, online = network(0), network(1)
    online(torch.randn(16, 4))
    before, kept = copy.deepcopy(dict(target.named_buffers())), bits(online)
    update_ema(target, online, 0.5)
    for name, buffer in target.named_buffers():
        assert torch.equal(buffer, before[name])
    assert bits(online) == kept
    assert all(p.grad_fn is None and p.requires_grad for p in target.parameters())


def test_refusals() -> None:
    for momentum in (-0.1, 1.1, float("nan")):
        with pytest.raises(ConfigError, match="momentum="):
            update_ema(network(0), network(1), momentum)
    with pytest.raises(ContractError, match="target has 9 parameters"):
        update_ema(ConvNet3(features=None, norm="batch").build((1, 8, 8)), network(0), 0.5)
    with pytest.raises(ContractError, match="shapes differ"):
        update_ema(nn.Linear(2, 3), nn.Linear(3, 2), 0.5)


WITH_TARGET = {
    "fedmcc": "clustering_momentum=0.5",
    "mcc": "momentum=0.99",
    "fedbyol": "momentum=0.99",
    "byol": "momentum=0.9",
    "fedu": "momentum=0.99",
    "fedema": "momentum=0.99",
    "orchestra": "momentum=0.99",
    "moco": "momentum=0.99",
    "dino": "momentum=0.99",
}
WITHOUT = ("fedcc", "cc", "fedsimclr", "simsiam", "ccfc", "cfcl", "cpcfl", "fedavg")
KEYS = ("cluster=serial", "precision=bf16-true")


@pytest.mark.parametrize(("dtype", "left"), [(torch.float32, 1e-3), (torch.bfloat16, 0.3)])
def test_in_bfloat16_a_target_stops_on_its_way(dtype: torch.dtype, left: float) -> None:
    torch.manual_seed(0)
    target, online = nn.Linear(50, 50).to(dtype), nn.Linear(50, 50).to(dtype)

    def distance() -> float:
        return float((target.weight - online.weight).float().norm())

    start = distance()
    for _ in range(2000):
        update_ema(target, online, 0.996)
    assert (distance() < left * start) is (dtype == torch.float32)


@pytest.mark.parametrize(("name", "key"), WITH_TARGET.items())
def test_methods_with_a_target_network_refuse_it(name: str, key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        assemble(compose(f"experiment={name}_digits", *KEYS))
    assert str(refused.value) == (
        "precision=bf16-true: bfloat16 rounds away the small steps of a moving average with "
        f"method.{key}; use bf16-mixed."
    )
    assemble(compose(f"experiment={name}_digits", KEYS[0], "precision=bf16-mixed"))


@pytest.mark.parametrize("momentum", ["0.0", "1.0"])
def test_a_target_that_copies_or_stands_still_may_have_it(momentum: str) -> None:
    assemble(compose("experiment=mcc_digits", *KEYS, f"method.momentum={momentum}"))
    stages = ("method.clustering_momentum=null", f"method.momentum={momentum}")
    assemble(compose("experiment=fedmcc_digits", *KEYS, *stages))


@pytest.mark.parametrize("name", WITHOUT)
def test_other_methods_may_have_it_whatever_their_optimisers_momentum(name: str) -> None:
    sgd = ("method.momentum=0.9", "method.optimizer=sgd") if name == "fedavg" else ()
    assemble(compose(f"experiment={name}_digits", *KEYS, *sgd))
