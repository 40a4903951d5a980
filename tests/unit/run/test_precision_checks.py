"""Precisions that are refused before the run, in one sentence; no GPU is needed to refuse."""

import pytest

from coterie.commands.compose import compose
from coterie.errors import ConfigError
from coterie.run.precision_checks import check_precision

GPU = ("cluster=local", "cluster.gpus_per_client=1", "executor=lightning", "precision=16-mixed")
RECORD = ("privacy.dp.clip=1", "privacy.dp.noise_multiplier=1", "privacy.dp.unit=sample")


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (("experiment=fedavg_digits", *RECORD), "privacy.dp.unit=sample would clip the scaled"),
        (("experiment=dcco_digits",), "method=DCCO has steps without a gradient to scale"),
        (("experiment=fedsc_digits",), "method=FedSC has steps without a gradient to scale"),
        (("experiment=fedavg_digits", "accelerator=cpu"), "clients train on the CPU, which has"),
        (("experiment=fedavg_digits", "executor=bare"), "executor=bare has no gradient scaler"),
    ],
)
def test_float16_needs_gradients_that_can_be_scaled(overrides: tuple[str, ...], why: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        check_precision(compose(*GPU, *overrides))
    assert str(refusal.value).startswith(f"precision=16-mixed: {why}")


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_bfloat16_loses_the_servers_steps(optimizer: str) -> None:
    keys = ("experiment=fedavg_digits", f"aggregation.optimizer={optimizer}")
    check_precision(compose(*keys, "precision=bf16-mixed"))
    with pytest.raises(ConfigError, match=f"server with aggregation.optimizer={optimizer}; use"):
        check_precision(compose(*keys, "precision=bf16-true"))


def test_float16_on_a_gpu_is_taken() -> None:
    check_precision(compose("experiment=fedavg_digits", *GPU))
