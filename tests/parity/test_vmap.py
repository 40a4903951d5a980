"""The executor `vmap` against `bare`: equal results for every method that declares it."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from coterie.config.participation import ParticipationConfig
from coterie.config.schema import ClusterConfig
from coterie.modules.byol import FedBYOL
from coterie.modules.cc import FedCC
from coterie.modules.fedavg import FedAvg
from coterie.modules.fedmcc import MCC, FedMCC
from coterie.modules.simclr import FedSimCLR
from coterie.modules.simsiam import FedSimSiam
from coterie.modules.specloss import SpecLoss
from coterie.networks.encoders import ConvNet3, EncoderConfig
from tests.builders.every_method import METHODS as EVERY
from tests.builders.federation import Federated, federate, tiny_workload

pytestmark = pytest.mark.ci

ATOL = {"64-true": 1e-10, "32-true": 1e-5}
SHORT: dict[str, Any] = {"rounds": 2, "epochs": 2, "batch_size": 8}
NARROW: dict[str, Any] = {**SHORT, "hidden": 8, "projection": 5}
PREDICTED: dict[str, Any] = {**NARROW, "bottleneck": 4}
STAGES: dict[str, Any] = {
    "projection": 5,
    "batch_size": 8,
    "momentum": 0.9,
    "representation_rounds": 2,
    "clustering_rounds": 2,
    "representation_epochs": 2,
    "clustering_epochs": 3,
}
METHODS: dict[str, Any] = {
    "FedAvg": FedAvg.Config(**SHORT, momentum=0.5, weight_decay=1e-3),
    "FedAvg, Adam": FedAvg.Config(**SHORT, optimizer="adam", learning_rate=1e-2, head_layers=1),
    "FedSimCLR": FedSimCLR.Config(**NARROW),
    "FedMCC": FedMCC.Config(**STAGES),
    "FedMCC, two": FedMCC.Config(**STAGES, representations="two", cluster_heads=2),
    "FedMCC, averaged": FedMCC.Config(**STAGES, aggregate_target=True, include_positive=True),
    "MCC": MCC.Config(rounds=2, epochs=2, batch_size=8, projection=5),
    "FedCC": FedCC.Config(**SHORT, projection=5),
    "FedBYOL": FedBYOL.Config(**PREDICTED, momentum=0.9, predictor_threshold=1e-6),
    "FedSimSiam": FedSimSiam.Config(**PREDICTED),
    "SpecLoss": SpecLoss.Config(**NARROW),
}
CENTRAL = {"SimCLR", "BYOL", "SimSiam", "CC"}
"""Of the same code as their federated forms."""


def ran(name: str, executor: str, precision: str = "64-true", **keys: Any) -> Federated:
    labelled = name.startswith("FedAvg")
    cluster = ClusterConfig(backend="serial", vmap_clients=keys.pop("vmap_clients", 32))
    encoder: EncoderConfig | None = keys.pop("encoder", None)
    keys = {"executor": executor, "precision": precision, "cluster": cluster, **keys}
    method = keys.pop("method", METHODS[name])
    workload = tiny_workload(method, needs_labels=labelled, **keys)
    if encoder is not None:
        workload = replace(workload, task=replace(workload.task, encoder=encoder))
    return federate(workload)


def assert_close(one: Any, other: Any, atol: float) -> None:
    assert one.keys() == other.keys()
    for key, tensor in one.items():
        assert torch.allclose(tensor, other[key], rtol=0.0, atol=atol), key


def assert_equal(one: Federated, other: Federated, atol: float) -> None:
    """Equal server states after each phase, metrics, and states that clients keep."""
    assert len(one.spy.served) == len(other.spy.served)
    for (*_, a), (*_, b) in zip(one.spy.served, other.spy.served, strict=True):
        for slot in a.slots:
            assert_close(a.slots[slot], b.slots[slot], atol)
    tasks = [sorted(f.spy.tasks, key=lambda t: (t.phase.round, t.client.id)) for f in (one, other)]
    for a, b in zip(*tasks, strict=True):
        assert (a.client.id, a.phase.name) == (b.client.id, b.phase.name)
        assert a.outcome.metrics == pytest.approx(b.outcome.metrics, abs=10 * atol)
    assert one.kept.keys() == other.kept.keys()
    for client in one.kept:
        assert_close(one.kept[client], other.kept[client], atol)


@pytest.mark.parametrize("precision", ["64-true", pytest.param("32-true", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", METHODS)
def test_stacked_clients_of_unequal_sizes_train_as_each_alone(name: str, precision: str) -> None:
    bare, vmapped = (ran(name, executor, precision) for executor in ("bare", "vmap"))
    assert_equal(vmapped, bare, ATOL[precision])


def test_every_method_that_declares_it_is_tested() -> None:
    declared = {kind.__name__ for kind in EVERY if vars(kind).get("vmappable")}
    assert declared == {name.partition(",")[0] for name in METHODS} | CENTRAL


@pytest.mark.parametrize("name", ["FedAvg", "FedSimCLR", "FedMCC"])
def test_a_convolutional_encoder_with_batch_norm(name: str) -> None:
    encoder = ConvNet3(width=4, features=6)
    bare, vmapped = (ran(name, executor, encoder=encoder) for executor in ("bare", "vmap"))
    assert_equal(vmapped, bare, 1e-10)


@pytest.mark.parametrize("vmap_clients", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_size_of_the_groups_changes_rounding_only(vmap_clients: int) -> None:
    for name in ("FedAvg", "FedMCC"):
        assert_equal(ran(name, "vmap", vmap_clients=vmap_clients), ran(name, "bare"), 1e-10)


def test_stragglers_take_fewer_steps() -> None:
    slow = ParticipationConfig(straggler_rate=0.5, straggler_work=0.4)
    bare, vmapped = (ran("FedMCC", name, participation=slow) for name in ("bare", "vmap"))
    assert {task.client.work for task in bare.spy.tasks} == {0.4, 1.0}
    assert_equal(vmapped, bare, 1e-10)


def test_bfloat16_agrees_to_its_rounding() -> None:
    bare, vmapped = (ran("FedSimCLR", name, "bf16-true") for name in ("bare", "vmap"))
    for one, other in zip(vmapped.spy.tasks, bare.spy.tasks, strict=True):
        assert one.outcome.metrics == pytest.approx(other.outcome.metrics, rel=0.05, abs=0.02)


@pytest.mark.parametrize("name", ["FedAvg", "FedSimCLR", "FedMCC"])
def test_autocast_agrees_to_bfloat16s_rounding(name: str) -> None:
    encoder = ConvNet3(width=4, features=6)
    bare, vmapped, wide = (
        ran(name, executor, precision, encoder=encoder)
        for executor, precision in (
            ("bare", "bf16-mixed"),
            ("vmap", "bf16-mixed"),
            ("vmap", "32-true"),
        )
    )
    for one, other in zip(*(losses(run) for run in (vmapped, bare)), strict=True):
        assert one == pytest.approx(other, rel=0.05, abs=0.02)
    assert losses(vmapped) != losses(wide)


def test_a_step_under_autocast_differs_from_bare_by_less_than_from_float32() -> None:
    encoder = ConvNet3(width=4, features=6)
    one_step = FedSimCLR.Config(**{**NARROW, "rounds": 1, "epochs": 1, "batch_size": 64})
    vmapped, bare, wide = (
        losses(ran("FedSimCLR", executor, precision, encoder=encoder, method=one_step))
        for executor, precision in (
            ("vmap", "bf16-mixed"),
            ("bare", "bf16-mixed"),
            ("bare", "32-true"),
        )
    )
    vmapped, bare, wide = map(torch.tensor, (vmapped, bare, wide))
    assert 3 * (vmapped - bare).abs().sum() < (bare - wide).abs().sum()


def losses(run: Federated) -> list[float]:
    tasks = sorted(run.spy.tasks, key=lambda task: (task.phase.round, task.client.id))
    return [task.outcome.metrics["loss"] for task in tasks if "loss" in task.outcome.metrics]


def test_the_same_run_has_the_same_bits() -> None:
    one, other = (ran("FedMCC", "vmap", "32-true").state.server.slots for _ in range(2))
    for slot in one:
        assert_close(one[slot], other[slot], 0.0)
