"""The executor `stacked` against `bare`: equal results for every method that declares it."""

from typing import Any

import pytest
import torch

from modules.fedavg import FedAvg
from modules.fedmcc import FedMCC
from modules.simclr import FedSimCLR
from tests.builders.federation import Federated, federate, tiny_workload

ATOL = {"64-true": 1e-10, "32-true": 1e-5}
METHODS: dict[str, Any] = {
    "FedAvg": FedAvg.Config(rounds=2, epochs=2, batch_size=8, momentum=0.5, weight_decay=1e-3),
    "FedAvg, Adam": FedAvg.Config(
        rounds=2, epochs=2, batch_size=8, optimizer="adam", learning_rate=1e-2
    ),
    "FedSimCLR": FedSimCLR.Config(rounds=2, epochs=2, batch_size=8, hidden=8, projection=5),
    "FedMCC": FedMCC.Config(
        projection=5,
        batch_size=8,
        momentum=0.9,
        representation_rounds=2,
        clustering_rounds=2,
        representation_epochs=2,
        clustering_epochs=3,
    ),
}


def ran(name: str, executor: str, precision: str = "64-true", **keys: Any) -> Federated:
    labelled = name.startswith("FedAvg")
    keys = {"executor": executor, "precision": precision, **keys}
    return federate(tiny_workload(METHODS[name], needs_labels=labelled, **keys))


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
    turns = [sorted(f.spy.turns, key=lambda t: (t.phase.round, t.client.id)) for f in (one, other)]
    for a, b in zip(*turns, strict=True):
        assert (a.client.id, a.phase.name) == (b.client.id, b.phase.name)
        assert a.outcome.metrics == pytest.approx(b.outcome.metrics, abs=10 * atol)
    assert one.kept.keys() == other.kept.keys()
    for client in one.kept:
        assert_close(one.kept[client], other.kept[client], atol)


@pytest.mark.parametrize("precision", ATOL)
@pytest.mark.parametrize("name", METHODS)
def test_stacked_clients_of_unequal_sizes_train_as_each_alone(name: str, precision: str) -> None:
    bare, stacked = (ran(name, executor, precision) for executor in ("bare", "stacked"))
    assert_equal(stacked, bare, ATOL[precision])
