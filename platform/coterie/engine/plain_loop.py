"""A plain training loop over the same LightningModules, for many tiny clients.

It runs the hooks listed in `SUPPORTED_HOOKS`, in Lightning's order, and refuses modules that need
anything else of a Trainer, so that both executors give the same weights.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor
from torch.optim import Optimizer

from coterie.contract.client import Batch, Batches, Fit
from coterie.contract.seeds import seeded
from coterie.engine.meter import Meter
from coterie.errors import ConfigError

SUPPORTED_HOOKS = frozenset({
    "on_train_start", "on_train_epoch_start", "on_before_batch_transfer", "transfer_batch_to_device",
    "on_after_batch_transfer", "on_train_batch_start", "on_before_zero_grad", "on_before_backward",
    "on_after_backward", "on_before_optimizer_step", "on_train_batch_end", "on_train_epoch_end",
    "on_train_end",
})  # fmt: skip
_REFUSED_HOOKS = (
    "on_fit_start", "on_fit_end", "setup", "teardown", "configure_callbacks", "configure_model",
    "configure_gradient_clipping", "optimizer_step", "optimizer_zero_grad", "backward",
    "lr_scheduler_step", "prepare_data", "train_dataloader", "manual_backward",
)  # fmt: skip
_DTYPES = {"32-true": torch.float32, "64-true": torch.float64, "bf16-true": torch.bfloat16}


def _nothing() -> None:
    """Let training go on."""


@dataclass(frozen=True, kw_only=True)
class PlainLoop:
    """Trains without a Trainer; the attributes are those of `LightningTrainer`."""

    accelerator: str = "cpu"
    precision: str = "32-true"
    deterministic: bool = True
    stop: Callable[[], None] = _nothing

    def fit(self, module: LightningModule, batches: Batches, seed: int) -> Fit:
        """Train the module in place; see `LocalTrainer`.

        Raises:
            ConfigError: If the module needs what only Lightning's Trainer does.
        """
        check_supported(module, self.precision)
        device = torch.device(self.accelerator)
        module.to(device=device, dtype=_DTYPES.get(self.precision))
        meter = Meter()
        with seeded(seed), self._determinism():
            optimizer = _only_optimizer(module)
            module.train()
            module.on_train_start()
            for _ in range(batches.epochs):
                module.on_train_epoch_start()
                for index, batch in enumerate(batches):
                    self._step(module, optimizer, batch, index, meter)
                    self.stop()
                module.on_train_epoch_end()
            module.on_train_end()
        module.cpu()
        return meter.fit()

    def _step(
        self, module: LightningModule, optimizer: Optimizer, batch: Batch, index: int, meter: Meter
    ) -> None:
        moved = module.on_before_batch_transfer(batch, 0)
        moved = module.transfer_batch_to_device(moved, torch.device(self.accelerator), 0)
        moved = module.on_after_batch_transfer(moved, 0)
        module.on_train_batch_start(moved, index)
        outputs: Any = None

        def closure() -> Tensor:
            nonlocal outputs
            with self._autocast():
                outputs = module.training_step(moved, index)
            loss: Tensor = outputs["loss"] if isinstance(outputs, dict) else outputs
            module.on_before_zero_grad(optimizer)
            optimizer.zero_grad()
            module.on_before_backward(loss)
            loss.backward()  # type: ignore[no-untyped-call]
            module.on_after_backward()
            module.on_before_optimizer_step(optimizer)
            return loss

        optimizer.step(closure)  # type: ignore[arg-type]
        module.on_train_batch_end(outputs, moved, index)
        meter.add(outputs)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.precision == "bf16-mixed":
            return torch.autocast(self.accelerator, dtype=torch.bfloat16)
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def _determinism(self) -> Iterator[None]:
        before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(self.deterministic)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before)


def check_supported(module: LightningModule, precision: str) -> None:
    """Raise a ConfigError if the plain loop would train this module differently from Lightning."""
    name = type(module).__name__
    if precision == "16-mixed":
        raise ConfigError(
            "precision=16-mixed: the plain loop has no gradient scaler; use bf16-mixed."
        )
    if not module.automatic_optimization:
        raise ConfigError(f"executor=loop: {name} optimises manually; use executor=lightning.")
    for hook in _REFUSED_HOOKS:
        if getattr(type(module), hook, None) is not getattr(LightningModule, hook, None):
            raise ConfigError(f"executor=loop: {name} overrides {hook}; use executor=lightning.")


def _only_optimizer(module: LightningModule) -> Optimizer:
    found = module.configure_optimizers()
    if not isinstance(found, Optimizer):
        kind = type(found).__name__
        raise ConfigError(
            f"executor=loop: configure_optimizers gave a {kind}; return one optimiser."
        )
    return found
