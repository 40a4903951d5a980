"""The executor `lightning`, and the choice of executor; `own_trainer` builds Trainers too."""

import logging
import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.utilities import rank_zero_only

from coterie.config.schema import RunConfig
from coterie.contract.client import Batches, Fit, LocalTrainer
from coterie.contract.seeds import seeded
from coterie.execution.bare_trainer import BareTrainer
from coterie.execution.engine import Engine, Stop
from coterie.execution.meter import Meter
from coterie.execution.vmap_trainer import VmapTrainer


class _Watch(Callback):
    """Callback that counts steps, and lets the run stop between them."""

    def __init__(self, meter: Meter, stop: Stop) -> None:
        self._meter, self._stop = meter, stop

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._meter.add(outputs)
        self._stop()


@dataclass(frozen=True, kw_only=True)
class LightningTrainer(Engine):
    """A fresh `lightning.Trainer` for each fit.

    Attributes:
        callbacks: Callbacks of the user; each fit has fresh copies, so that a client's training
            does not depend on those before it in the same process.
    """

    callbacks: tuple[Callback, ...] = ()

    def build(self, epochs: int, *callbacks: Callback) -> Trainer:
        """Build a Trainer that only trains: no logger, checkpoints, bars, summary or validation."""
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        # A client's Trainer is alone, whatever a launcher's variables say.
        setattr(rank_zero_only, "rank", 0)  # noqa: B010 - it has no type
        return Trainer(
            accelerator=self.accelerator,
            devices=1,
            precision=self.precision,  # type: ignore[arg-type]  # validated by RunConfig
            deterministic=self.deterministic,
            max_epochs=epochs,
            callbacks=list(callbacks),
            plugins=[LightningEnvironment()],  # otherwise SLURM's variables crash it
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
        )

    def fit(self, module: LightningModule, batches: Batches, seed: int) -> Fit:
        """Train the module in place; see `LocalTrainer`."""
        meter = Meter()
        with seeded(seed), warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="lightning")
            own = deepcopy(self.callbacks)
            self.build(batches.epochs, *own, _Watch(meter, self.stop)).fit(module, batches)
        module.cpu()
        return meter.fit()


def local_trainer(
    config: RunConfig,
    device: torch.device,
    stop: Stop = lambda: None,
    callbacks: tuple[Callback, ...] = (),
) -> LocalTrainer:
    """Build the trainer of the configured executor, on this process's device."""
    kinds: dict[str, Callable[..., LocalTrainer]] = {
        "lightning": partial(LightningTrainer, callbacks=callbacks),
        "bare": BareTrainer,
        "vmap": VmapTrainer,
    }
    return kinds[config.executor](
        accelerator=device.type,
        precision=config.precision,
        deterministic=config.deterministic,
        stop=stop,
    )
