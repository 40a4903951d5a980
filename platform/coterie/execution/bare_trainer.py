"""The executor `bare`: training without a Lightning Trainer, for many tiny clients.

It calls the hooks in `SUPPORTED_HOOKS` in Lightning's order and refuses modules that need anything
else of a Trainer, so that both executors give the same weights.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from lightning import LightningModule
from lightning.pytorch.plugins.precision import Precision
from torch import Tensor
from torch.optim import Optimizer

from coterie.contract.client import Batch, Batches, Fit
from coterie.contract.seeds import seeded
from coterie.execution.engine import Engine
from coterie.execution.meter import Meter
from coterie.execution.without_trainer import (
    check_supported,
    determinism,
    optimizer_and_schedule,
    precision_plugin,
    prepared,
    unsupported,
    without_trainer,
)


@dataclass(frozen=True, kw_only=True)
class BareTrainer(Engine):
    """Executor that trains a LightningModule without a Trainer."""

    def fit(self, module: LightningModule, batches: Batches, seed: int) -> Fit:
        """Train the module in place; see `LocalTrainer`.

        Raises:
            ConfigError: If the module needs a Trainer.
        """
        check_supported(module)
        precision, meter = precision_plugin(self.precision, self.accelerator), Meter()
        precision.convert_module(module)
        if batches.epochs == 0:
            return meter.fit()
        alone = without_trainer(module)
        with self._device(module), seeded(seed), determinism(self.deterministic), alone:
            self._epochs(module, precision, batches, meter)
        return meter.fit()

    @contextmanager
    def _device(self, module: LightningModule) -> Iterator[None]:
        """Move the module to its device within the context, and back to the CPU after it."""
        if self.accelerator == "cpu":  # moving visits each tensor, which takes time there too
            yield
            return
        try:
            module.to(torch.device(self.accelerator))
            yield
        finally:
            module.cpu()

    def _epochs(
        self, module: LightningModule, precision: Precision, batches: Batches, meter: Meter
    ) -> None:
        optimizer, schedule = optimizer_and_schedule(module)
        module.on_train_start()
        for epoch in range(1, batches.epochs + 1):
            module.on_train_epoch_start()
            for index, batch in enumerate(batches):
                meter.add(self._step(module, optimizer, precision, batch, index))
                self.stop()
            module.on_train_epoch_end()
            if schedule is not None and epoch % schedule.frequency == 0:
                schedule.scheduler.step()
        module.on_train_end()

    def _step(
        self,
        module: LightningModule,
        optimizer: Optimizer,
        precision: Precision,
        batch: Batch,
        index: int,
    ) -> Mapping[str, Any]:
        moved = prepared(module, precision, batch, index, "bare")
        outputs: dict[str, Any] = {}

        def closure() -> Tensor:
            with precision.train_step_context():
                given: Any = module.training_step(moved, index)
            if given is None:
                raise unsupported(module, "gives no loss in a step")
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


def _clear_gradients(optimizer: Optimizer) -> None:
    """Clear gradients as `optimizer.zero_grad()` does, without the cost of its profiler record."""
    if type(optimizer).zero_grad is not Optimizer.zero_grad:
        optimizer.zero_grad()
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None
