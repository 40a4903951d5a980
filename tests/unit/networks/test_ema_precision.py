"""Moving averages and bfloat16: why methods with one refuse it, which ones do, and when not."""

import pytest
import torch
from torch import nn

from coterie.commands.compose import compose
from coterie.errors import ConfigError
from coterie.networks import update_ema
from coterie.run.setup import assemble

WITH_TARGET = {
    "fedmcc": "clustering_momentum=0.5",
    "mcc": "momentum=0.99",
    "fedbyol": "momentum=0.99",
    "byol": "momentum=0.9",
    "orchestra": "momentum=0.99",
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
