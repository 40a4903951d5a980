"""Orchestra cut short for the tiny federation, and its model on one batch of random images."""

from typing import Any

import torch
from torch import Tensor

from coterie.modules.orchestra import Orchestra
from coterie.modules.orchestra_model import OrchestraModel
from tests.builders.federation import SHAPE, tiny_task

SHORT = {
    "projection": 5,
    "hidden": 7,
    "batch_size": 8,
    "rounds": 2,
    "epochs": 2,
    "participation": 1.0,
    "local_clusters": 3,
    "global_clusters": 4,
    "global_steps": 20,
    "memory": 16,
    "learning_rate": 0.05,
    "momentum": 0.7,
}


def short(**changes: Any) -> Orchestra.Config:
    return Orchestra.Config(**SHORT | changes)


def model(**changes: Any) -> OrchestraModel:
    torch.manual_seed(0)
    built = OrchestraModel(short(**changes), tiny_task())
    built.on_train_epoch_start()
    return built


def batch_of(built: OrchestraModel, n: int = 8, seed: int = 5) -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(seed)
    samples = torch.randint(0, 256, (n, *SHAPE), dtype=torch.uint8, generator=draw)
    batch = {"samples": samples, "positions": torch.arange(n), "seed": seed}
    return built.on_after_batch_transfer(batch, 0)


def rows(built: OrchestraModel) -> list[int]:
    return built.remembered.tolist()
