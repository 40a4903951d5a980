"""The contract's `Client` for one task, which the method's client half receives."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from lightning import LightningModule
from numpy.typing import NDArray
from torch import Tensor, nn

from coterie.aggregation.pipeline import ClientStages
from coterie.contract.client import ClientData, Fit, LocalTrainer, ModuleT, Plan
from coterie.contract.clusterer import parameter_dtype, to_unit
from coterie.contract.own_module import Trained, Training
from coterie.contract.phase import Tensors
from coterie.contract.seeds import derive_seed
from coterie.execution import own_trainer
from coterie.execution.bare_trainer import BareTrainer
from coterie.execution.batches import SeededBatches
from coterie.execution.module_pool import ModulePool
from coterie.execution.own_bare import train_bare
from coterie.execution.trainer import LightningTrainer

_EMBED_ROWS = 256
"""Samples per forward pass of `embed`."""


@dataclass(frozen=True, kw_only=True)
class TaskClient:
    """One client in one task.

    Attributes:
        id: See `Client`, as for data, state, peer messages and seed.
        needs_labels: Whether batches carry labels.
        pool: Modules kept between tasks.
        work: Share of the local steps to do; under 1 for a straggler.
        stages: The stages of the aggregation, for this task.
    """

    id: int
    data: ClientData
    state: Tensors | None
    peer_messages: Mapping[int, Tensors]
    seed: int
    needs_labels: bool
    trainer: LocalTrainer
    pool: ModulePool
    device: torch.device
    work: float = 1.0
    stages: ClientStages = field(default_factory=ClientStages)

    def module(self, key: str, build: Callable[[], ModuleT]) -> ModuleT:
        """Return the module in its initial state."""
        return self.pool.fresh(key, build)

    def fit(self, module: LightningModule, plan: Plan, data: ClientData | None = None) -> Fit:
        """Train the module in place, by default on the client's own data."""
        data = self.data if data is None else data
        seed = self.seed if plan.seed is None else plan.seed
        batches = SeededBatches(data, plan, seed, with_labels=self.needs_labels, work=self.work)
        # With a seed that outlives the task, a network's own draws must not repeat in the next one.
        own = seed if plan.seed is None else derive_seed(seed, "turn", plan.first_step)
        with self.stages.training(module, plan):
            return self.trainer.fit(module, batches, own)

    def train(self, module: Any, training: Training) -> Trained:
        """Train a user's module in place by a plain Trainer and the user's own loaders."""
        if isinstance(self.trainer, BareTrainer):
            return train_bare(self.trainer, module, training, self.seed, self.work)
        return own_trainer.train(self._lightning, module, training, self.seed, self.work)

    def score(self, module: Any, training: Training) -> dict[str, float]:
        """Return what a user's module logs on the client's held-out samples."""
        return own_trainer.score(self._lightning, module, training, self.seed)

    @property
    def _lightning(self) -> LightningTrainer:
        given: Any = self.trainer
        if isinstance(given, LightningTrainer):
            return given
        keys = ("accelerator", "precision", "deterministic", "stop")
        return LightningTrainer(**{key: getattr(given, key) for key in keys})

    def noisy(self, sums: NDArray[np.int64], sigma: int, purpose: str) -> NDArray[np.int64]:
        """Return the integers with the client's own noise."""
        return self.stages.noisy(sums, sigma, purpose)

    def embed(self, network: nn.Module, samples: Tensor | None = None) -> Tensor:
        """Return the network's outputs for samples, by default the client's own, on the CPU."""
        return embed(network, self.data if samples is None else samples, self.device)


def embed(network: nn.Module, data: ClientData | Tensor, device: torch.device) -> Tensor:
    """Compute a network's outputs in eval mode and without a graph.

    Args:
        network: Takes samples in [0, 1] in its own dtype. It ends on the CPU, each part in the
            mode (train or eval) that it had.
        data: The client's data, or samples (n, …) with n ≥ 1.
        device: Where to compute.

    Returns:
        Outputs (n, …), in the samples' order, on the CPU.
    """
    modes = {part: part.training for part in network.modules()}
    dtype, size = parameter_dtype(network), len(data)
    try:
        network.eval().to(device)
        with torch.no_grad():
            blocks = (
                _rows(data, start, min(start + _EMBED_ROWS, size)).to(device)
                for start in range(0, size, _EMBED_ROWS)
            )
            return torch.cat([network(to_unit(block, dtype)).cpu() for block in blocks])
    finally:  # the module is used again, whatever became of this task
        network.cpu()
        for part, training in modes.items():
            part.training = training


def _rows(data: ClientData | Tensor, start: int, end: int) -> Tensor:
    return data[start:end] if isinstance(data, Tensor) else data.take(np.arange(start, end))
