"""`compile=default`: encoders compiled by TorchInductor give the results of those that are not."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from coterie.modules.fedmcc import FedMCC
from coterie.networks.encoders import ConvNet3, Encoder
from tests.builders.federation import Federated, federate, tiny_workload

CONFIG = FedMCC.Config(
    projection=5,
    batch_size=8,
    momentum=0.9,
    representation_rounds=1,
    clustering_rounds=1,
    representation_epochs=1,
    clustering_epochs=1,
)


def ran(*, mode: str | None) -> Federated:
    workload = tiny_workload(CONFIG, compile=mode)
    return federate(
        replace(workload, task=replace(workload.task, encoder=ConvNet3(width=4, features=6)))
    )


@pytest.mark.slow
def test_compiled_encoders_train_as_others(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, object]] = []
    compiled = Encoder.compile

    def spied(part: Encoder, **keys: Any) -> None:
        calls.append(keys)
        compiled(part, **keys)

    monkeypatch.setattr(Encoder, "compile", spied)
    one, other = ran(mode=None), ran(mode="default")
    assert calls
    assert all(keys == {"dynamic": False, "mode": "default"} for keys in calls)
    for slot, values in one.state.server.slots.items():
        for key, value in values.items():
            torch.testing.assert_close(
                other.state.server.slots[slot][key], value, rtol=0.0, atol=1e-10, msg=key
            )
    for a, b in zip(one.spy.tasks, other.spy.tasks, strict=True):
        assert a.outcome.metrics == pytest.approx(b.outcome.metrics, abs=1e-9)
