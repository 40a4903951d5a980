"""Lightning's Trainer and the plain loop: the same bits; precision and device reach both."""

from typing import Any

import pytest
import torch
from lightning.pytorch.accelerators import CPUAccelerator

from coterie.config.schema import RunConfig
from coterie.execution.bare_trainer import BareTrainer
from coterie.execution.trainer import LightningTrainer, local_trainer
from coterie.modules.fedmcc import FedMCC
from tests.builders.federation import Federated, federate, same_bits, tiny_workload

CPU = torch.device("cpu")
ROUND = FedMCC.Config(
    projection=5,
    batch_size=8,
    momentum=0.9,
    representation_rounds=1,
    clustering_rounds=1,
    representation_epochs=2,
    clustering_epochs=2,
)


def ran(executor: str, precision: str, **keys: Any) -> Federated:
    return federate(tiny_workload(ROUND, executor=executor, precision=precision, **keys))


@pytest.fixture(scope="module")
def single() -> Federated:
    return ran("bare", "32-true")


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed"])
def test_both_executors_give_the_same_bits(precision: str) -> None:
    loop, lightning = ran("bare", precision), ran("lightning", precision)
    assert len(loop.spy.served) == 2
    for (*_, one), (*_, other) in zip(loop.spy.served, lightning.spy.served, strict=True):
        assert one.slots.keys() == other.slots.keys()
        assert all(same_bits(one.slots[slot], other.slots[slot]) for slot in one.slots)
    for one, other in zip(loop.spy.tasks, lightning.spy.tasks, strict=True):
        assert one.outcome.metrics == other.outcome.metrics
        assert same_bits(one.outcome.state, other.outcome.state)
    assert loop.kept.keys() == lightning.kept.keys() == {0, 1, 2}


def test_the_precision_decides_the_type_of_what_is_averaged() -> None:
    for precision, dtype in (("32-true", torch.float32), ("64-true", torch.float64)):
        slots = ran("lightning", precision).state.server.slots
        assert {value.dtype for slot in slots.values() for value in slot.values()} == {dtype}


@pytest.mark.parametrize("executor", ["bare", "lightning"])
def test_bf16_mixed_rounds_the_loss_but_keeps_float32_weights(
    executor: str, single: Federated
) -> None:
    mixed = ran(executor, "bf16-mixed")
    weights = [value for slot in mixed.state.server.slots.values() for value in slot.values()]
    assert {value.dtype for value in weights} == {torch.float32}
    for found, exact in zip(mixed.commits, single.commits, strict=True):
        for one, other in zip(
            found.result.client_results, exact.result.client_results, strict=True
        ):
            assert one.metrics["loss"] == pytest.approx(other.metrics["loss"], rel=2e-2)
            assert one.metrics["loss"] != other.metrics["loss"]


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed", "bf16-true"])
def test_precision_reaches_the_trainer(precision: str) -> None:
    trainer = local_trainer(config(executor="lightning", precision=precision), CPU)
    assert isinstance(trainer, LightningTrainer)
    assert trainer.build(1).precision == precision
    loop = local_trainer(config(executor="bare", precision=precision), CPU)
    assert isinstance(loop, BareTrainer)
    assert loop.precision == precision


@pytest.mark.parametrize("deterministic", [True, False])
def test_deterministic_reaches_the_trainer(deterministic: bool) -> None:
    before = torch.are_deterministic_algorithms_enabled()
    trainer = local_trainer(config(executor="lightning", deterministic=deterministic), CPU)
    try:
        trainer.build(1)
        assert torch.are_deterministic_algorithms_enabled() is deterministic
    finally:
        torch.use_deterministic_algorithms(before)


@pytest.mark.parametrize("executor", ["bare", "lightning"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_device_reaches_the_trainer(executor: str, device: str) -> None:
    trainer = local_trainer(config(executor=executor), torch.device(device))
    assert trainer.accelerator == device


def test_the_trainer_trains_on_the_cpu_and_does_nothing_else() -> None:
    trainer = LightningTrainer().build(3)
    assert isinstance(trainer.accelerator, CPUAccelerator)
    assert trainer.max_epochs == 3
    assert trainer.loggers == []
    assert trainer.checkpoint_callbacks == []


def config(**keys: Any) -> RunConfig:
    return tiny_workload(ROUND, **keys).config
