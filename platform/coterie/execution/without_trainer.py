"""Replacements for what a LightningModule may need of a Trainer, for training without one."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, NoReturn

import torch
from lightning import LightningModule
from lightning.pytorch.plugins.precision import (
    DoublePrecision,
    HalfPrecision,
    MixedPrecision,
    Precision,
)
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from coterie.contract.client import Batch
from coterie.contract.own_module import own_base
from coterie.errors import ConfigError

Executor = Literal["bare", "vmap"]
"""The executors without a Trainer."""

SUPPORTED_HOOKS = frozenset(
    {
        "on_train_start",
        "on_train_epoch_start",
        "on_before_batch_transfer",
        "transfer_batch_to_device",
        "on_after_batch_transfer",
        "on_train_batch_start",
        "on_before_zero_grad",
        "on_before_backward",
        "on_after_backward",
        "on_before_optimizer_step",
        "on_train_batch_end",
        "on_train_epoch_end",
        "on_train_end",
    }
)
_REFUSED_HOOKS = (
    "on_fit_start",
    "on_fit_end",
    "setup",
    "teardown",
    "configure_callbacks",
    "configure_model",
    "configure_gradient_clipping",
    "optimizer_step",
    "optimizer_zero_grad",
    "backward",
    "lr_scheduler_step",
    "prepare_data",
    "train_dataloader",
    "manual_backward",
)


def check_supported(module: LightningModule, executor: Executor = "bare") -> None:
    """Raise a ConfigError if training without a Trainer would differ from Lightning's."""
    if not module.automatic_optimization:
        raise unsupported(module, "optimises manually", executor)
    for hook in _REFUSED_HOOKS:
        if overrides(module, hook):
            raise unsupported(module, f"overrides {hook}", executor)


def overrides(module: LightningModule, hook: str) -> bool:
    """Return whether the module overrides a hook."""
    base = own_base(module) or LightningModule  # of either Lightning package
    return getattr(type(module), hook, None) is not getattr(base, hook, None)


@contextlib.contextmanager
def without_trainer(module: LightningModule, executor: Executor = "bare") -> Iterator[None]:
    """Refuse `current_epoch`, `optimizers()` and other calls that need a Trainer.

    What the module logs goes nowhere.
    """
    module.trainer = _NoTrainer(module, executor)  # type: ignore[assignment]
    module.log = module.log_dict = _log_nothing  # type: ignore[method-assign]
    try:
        yield
    finally:
        del module.log, module.log_dict
        module.trainer = None


def _log_nothing(*values: object, **options: object) -> None:
    """Do nothing in place of Lightning's functions, which would warn in each step."""


class _NoTrainer:
    """A stand-in for the Trainer, which raises on every attribute."""

    def __init__(self, module: LightningModule, executor: Executor) -> None:
        self._module, self._executor = module, executor

    def __getattr__(self, name: str) -> NoReturn:
        raise unsupported(self._module, f"needs the Trainer's {name}", self._executor)


_INSTEAD: Mapping[Executor, str] = {"bare": "lightning", "vmap": "bare"}


def unsupported(module: LightningModule, what: str, executor: Executor = "bare") -> ConfigError:
    """Return the error for a module that an executor cannot train, with the executor to use."""
    kind, instead = type(module).__name__, _INSTEAD[executor]
    return ConfigError(f"executor={executor}: {kind} {what}; use executor={instead}.")


def precision_plugin(name: str, accelerator: str) -> Precision:
    """Return Lightning's plugin for a precision, which converts modules, batches and steps."""
    if name == "bf16-mixed":
        return MixedPrecision("bf16-mixed", accelerator)
    if name == "bf16-true":
        return HalfPrecision("bf16-true")
    return DoublePrecision() if name == "64-true" else Precision()


class RateSchedule(NamedTuple):
    """A scheduler of learning rates, and the number of epochs between its steps."""

    scheduler: LRScheduler
    frequency: int


def optimizer_and_schedule(
    module: LightningModule, executor: Executor = "bare"
) -> tuple[Optimizer, RateSchedule | None]:
    """Return the module's optimiser and, from Lightning's dict, its schedule by epochs.

    Raises:
        ConfigError: If it gives several optimisers, or a schedule of another kind.
    """
    found: Any = module.configure_optimizers()
    if isinstance(found, Optimizer):
        return found, None
    match found:
        case {
            "optimizer": Optimizer() as optimizer,
            "lr_scheduler": {
                "scheduler": LRScheduler() as scheduler,
                "interval": "epoch",
                "frequency": int(frequency),
            },
        } if executor == "bare" and not isinstance(scheduler, ReduceLROnPlateau):
            return optimizer, RateSchedule(scheduler, frequency)
    more = ", or a dict of it and a schedule by epochs" if executor == "bare" else ""
    raise ConfigError(
        f"executor={executor}: configure_optimizers gave a {type(found).__name__}; return one "
        f"optimiser{more}."
    )


@contextlib.contextmanager
def determinism(deterministic: bool) -> Iterator[None]:
    """Use only deterministic algorithms within the context, or allow any."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(deterministic)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def prepared(
    module: LightningModule, precision: Precision, batch: Batch, index: int, executor: Executor
) -> Any:
    """Return a batch for `training_step`, after the module's hooks and on its device.

    Args:
        module: On the device where it trains.
        precision: Converts the batch.
        batch: On the CPU.
        index: The batch's number in its epoch.
        executor: Who asks.
    """
    moved = module.on_before_batch_transfer(precision.convert_input(batch), 0)
    if module.device.type != "cpu" or overrides(module, "transfer_batch_to_device"):
        moved = module.transfer_batch_to_device(moved, module.device, 0)
    moved = module.on_after_batch_transfer(moved, 0)
    if module.on_train_batch_start(moved, index) == -1:
        raise unsupported(module, "ends epochs early", executor)
    return moved
