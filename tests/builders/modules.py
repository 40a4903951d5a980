"""Tiny float64 modules of MCC, random views, and local training on one client's data."""

from collections.abc import Callable

import torch
from torch import Tensor

from coterie.contract import Plan
from coterie.contract.client import ClientData
from coterie.execution.bare_trainer import BareTrainer
from coterie.execution.batches import SeededBatches
from coterie.modules.mcc import MomentumConfig, MomentumContrast
from tests.builders.federation import SHAPE, tiny_task, tiny_workload


def momentum_module(stage: str = "joint", seed: int = 0, **config: object) -> MomentumContrast:
    """A float64 module whose target differs from its online network."""
    torch.manual_seed(seed)
    built = MomentumContrast(MomentumConfig(projection=5, **config), tiny_task(), stage)
    other = MomentumContrast(MomentumConfig(projection=5, **config), tiny_task(), stage)
    built.target.load_state_dict(other.online.state_dict())
    built.on_train_epoch_start()
    return built


def random_views(n: int = 7, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.rand(2, n, *SHAPE, dtype=torch.float64, generator=generator))


def fit(built: MomentumContrast, epochs: int = 2, check: Callable[[], None] = lambda: None) -> None:
    """Train on 22 samples in batches of 8; `check` runs after every step and its EMA."""
    workload = tiny_workload(built.config)
    data = ClientData(samples=workload.samples["train"], rows=workload.parts[1])
    batches = SeededBatches(data, Plan(batch_size=8, epochs=epochs), seed=3)
    done = BareTrainer(precision="64-true", stop=check).fit(built, batches, seed=3)
    assert done.steps == 3 * epochs
