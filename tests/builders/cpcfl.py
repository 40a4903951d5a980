"""CP-CFL cut short for the tiny federation, and what its tests read of a run."""

from dataclasses import replace
from typing import Any

import torch

from coterie.datamodules.augmentations import NoAugmentation
from coterie.execution.backend import Workload
from coterie.execution.serial import SerialBackend
from coterie.modules.cpcfl import CPCFL, IFCA
from coterie.rounds.loop import Loop
from coterie.rounds.state import RunState
from tests.builders.federation import Federated, federate, tiny_workload
from tests.builders.observers import Silent

SHORT = {"batch_size": 8, "epochs": 2, "rounds": 4, "clusters": 2, "learning_rate": 0.01}


def short(**changes: Any) -> CPCFL.Config:
    return CPCFL.Config(**{**SHORT, "explore_rounds": 2, **changes})


def short_ifca(**changes: Any) -> IFCA.Config:
    return IFCA.Config(**{**SHORT, "min_share": 0.0, **changes})


def pool_workload(config: Any, **run: Any) -> Workload:
    """Labelled samples, and views that are the samples."""
    workload = tiny_workload(config, needs_labels=True, **run)
    return replace(workload, task=replace(workload.task, augmentation=NoAugmentation()))


def ran_with(config: Any, **run: Any) -> Federated:
    return federate(pool_workload(config, **run))


def run_from(workload: Workload, state: RunState, method: Any = None) -> RunState:
    """Run on from a state, by another method than the workload's if one is given."""
    backend = SerialBackend(workload, lambda: None)
    if method is not None:
        backend.worker.method = method
    used = backend.worker.method
    Loop(used, backend, workload, Silent(), lambda *_: None).run(state)
    return state


def models(slots: Any, count: int) -> list[dict[str, torch.Tensor]]:
    """Each model's tensors, encoder and head together."""
    encoders = [slots.get(f"encoder/{n}", slots.get("encoder")) for n in range(count)]
    return [{**encoders[n], **slots[f"head/{n}"]} for n in range(count)]
