"""Trains a user's module without a Trainer, where module and data module do not need one."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from coterie.contract.own_module import Trained, Training, own_base
from coterie.contract.seeds import seeded_everywhere
from coterie.errors import ConfigError
from coterie.execution.bare_trainer import BareTrainer
from coterie.execution.batches import share_of_steps

_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


@dataclass
class _Epochs:
    """A user's loader repeated over several epochs, up to the steps that are left."""

    loader: Any
    epoch: int
    epochs: int
    steps: int

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        now = min(self.steps, len(self))
        self.steps -= now
        if hasattr(self.loader.sampler, "set_epoch"):
            self.loader.sampler.set_epoch(self.epoch)
        self.epoch += 1
        return islice(self.loader, now)


def train_bare(engine: BareTrainer, module: Any, plan: Training, seed: int, work: float) -> Trained:
    """Train a module in place with the same bits as `own_trainer.train`, without logging.

    Raises:
        ConfigError: If module or data module needs a Trainer.
    """
    data, base = plan.source.datamodule, own_base(plan.source.datamodule, "LightningDataModule")
    for hook in _HOOKS if data is not None else ():
        if getattr(type(data), hook) is not getattr(base, hook):
            raise ConfigError(
                f"executor=bare: {type(data).__name__} overrides {hook}; use executor=lightning."
            )
    steps = share_of_steps(work, plan.epochs * len(plan.loader))
    with seeded_everywhere(seed):
        fit = engine.fit(module, _Epochs(plan.loader, plan.first_epoch, plan.epochs, steps), seed)
    return Trained(steps=fit.steps, metrics={"loss": fit.metrics["loss"]} if fit.steps else {})
