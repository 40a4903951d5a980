"""The executor `bare`: training without a Lightning Trainer, for many tiny clients.

It calls the hooks in `SUPPORTED_HOOKS` in Lightning's order and refuses modules that need anything
else of a Trainer, so that both executors give the same weights.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from lightning import LightningModule
from lightning.pytorch.plugins.precision import (
    DoublePrecision,
    HalfPrecision,
    MixedPrecision,
    Precision,
)
from torch import Tensor
from torch.optim import Optimizer

from coterie.contract.client import Batch, Batches, Fit
from coterie.contract.seeds import seeded
from coterie.errors import ConfigError
from coterie.execution.meter import Meter

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


@dataclass(frozen=True, kw_only=True)
class BareTrainer:
    """Trains a LightningModule without a Trainer.

    Attributes:
        accelerator: "cpu" or "cuda".
        precision: Lightning's name of the precision.
        deterministic: Whether to use deterministic algorithms only.
        stop: Called after each step; raises when the run is to stop.
    """

    accelerator: str = "cpu"
    precision: str = "32-true"
    deterministic: bool = True
    stop: Callable[[], None] = lambda: None

    def fit(self, module: LightningModule, batches: Batches, seed: int) -> Fit:
        """Train the module in place; see `LocalTrainer`.

        Raises:
            ConfigError: If the module needs a Trainer.
        """
        check_supported(module, self.precision)
        precision, meter = _precision(self.precision, self.accelerator), Meter()
        precision.convert_module(module)
        if batches.epochs == 0:
            return meter.fit()
        if self.accelerator != "cpu":  # moving visits each tensor, which takes time on the CPU too
            module.to(torch.device(self.accelerator))
        with seeded(seed), self._determinism(), _without_trainer(module):
            optimizer = _only_optimizer(module)
            module.on_train_start()
            for _ in range(batches.epochs):
                module.on_train_epoch_start()
                for index, batch in enumerate(batches):
                    meter.add(self._step(module, optimizer, precision, batch, index))
                    self.stop()
                module.on_train_epoch_end()
            module.on_train_end()
        if self.accelerator != "cpu":
            module.cpu()
        return meter.fit()

    def _step(
        self,
        module: LightningModule,
        optimizer: Optimizer,
        precision: Precision,
        batch: Batch,
        index: int,
    ) -> Mapping[str, Any]:
        moved = module.on_before_batch_transfer(precision.convert_input(batch), 0)
        if self.accelerator != "cpu" or _overrides(module, "transfer_batch_to_device"):
            moved = module.transfer_batch_to_device(moved, torch.device(self.accelerator), 0)
        moved = module.on_after_batch_transfer(moved, 0)
        if module.on_train_batch_start(moved, index) == -1:
            raise _unsupported(module, "ends epochs early")
        outputs: dict[str, Any] = {}

        def closure() -> Tensor:
            with precision.train_step_context():
                given: Any = module.training_step(moved, index)
            outputs.update(given if isinstance(given, Mapping) else {"loss": given})
            loss: Tensor = outputs["loss"]
            outputs["loss"] = loss.detach().clone()
            module.on_before_zero_grad(optimizer)
            _clear_gradients(optimizer)
            module.on_before_backward(loss)
            loss.backward()  # type: ignore[no-untyped-call]
            module.on_after_backward()
            module.on_before_optimizer_step(optimizer)
            return loss

        optimizer.step(closure)  # type: ignore[arg-type]
        module.on_train_batch_end(outputs, moved, index)
        return outputs

    @contextlib.contextmanager
    def _determinism(self) -> Iterator[None]:
        before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(self.deterministic)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before)


def check_supported(module: LightningModule, precision: str) -> None:
    """Raise a ConfigError if training without a Trainer would differ from Lightning's."""
    if precision == "16-mixed":
        raise ConfigError(
            "precision=16-mixed: executor=bare has no gradient scaler; use bf16-mixed."
        )
    if not module.automatic_optimization:
        raise _unsupported(module, "optimises manually")
    for hook in _REFUSED_HOOKS:
        if _overrides(module, hook):
            raise _unsupported(module, f"overrides {hook}")


def _overrides(module: LightningModule, hook: str) -> bool:
    return getattr(type(module), hook, None) is not getattr(LightningModule, hook, None)


@contextlib.contextmanager
def _without_trainer(module: LightningModule) -> Iterator[None]:
    """Refuse `current_epoch`, `optimizers()` and whatever else would ask a Trainer."""
    module.trainer = _NoTrainer(module)  # type: ignore[assignment]
    try:
        yield
    finally:
        module.trainer = None


class _NoTrainer:
    """Takes the Trainer's place; raises on every attribute except those that `log` needs."""

    barebones = True
    """Makes `LightningModule.log` do nothing."""

    def __init__(self, module: LightningModule) -> None:
        self._module = module

    def __getattr__(self, name: str) -> NoReturn:
        raise _unsupported(self._module, f"needs the Trainer's {name}")


def _unsupported(module: LightningModule, what: str) -> ConfigError:
    return ConfigError(f"executor=bare: {type(module).__name__} {what}; use executor=lightning.")


def _precision(name: str, accelerator: str) -> Precision:
    """Lightning's plugin for a precision: it converts modules, batches and the training step."""
    if name == "bf16-mixed":
        return MixedPrecision("bf16-mixed", accelerator)
    if name == "bf16-true":
        return HalfPrecision("bf16-true")
    return DoublePrecision() if name == "64-true" else Precision()


def _clear_gradients(optimizer: Optimizer) -> None:
    """Do what `optimizer.zero_grad()` does, without its profiler record, which costs more."""
    if type(optimizer).zero_grad is not Optimizer.zero_grad:
        optimizer.zero_grad()
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def _only_optimizer(module: LightningModule) -> Optimizer:
    found = module.configure_optimizers()
    if not isinstance(found, Optimizer):
        kind = type(found).__name__
        raise ConfigError(
            f"executor=bare: configure_optimizers gave a {kind}; return one optimiser."
        )
    return found
