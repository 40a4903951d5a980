"""Trains and scores a user's module by a plain Trainer, of `lightning` or `pytorch_lightning`."""

import contextlib
import io
import logging
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from importlib import import_module
from typing import Any, Literal

import torch
from lightning import Callback
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from torch.nn.parameter import is_lazy

from coterie.config.record_names import RESERVED
from coterie.contract.loaders import Source, data_with
from coterie.contract.own_module import Trained, Training, copy_of, own_base, several_devices
from coterie.contract.seeds import seeded_everywhere
from coterie.errors import ContractError, DataError
from coterie.execution.batches import share_of_steps
from coterie.execution.trainer import LightningTrainer
from coterie.networks.weight_files import unpickled

_WATCHED = re.compile(r"conditioned on metric `?(\S+?)`? which is not available")
"""How Lightning says that a callback or scheduler lacks the metric that it watches."""
_REPORT, _KEPT = "coterie/report", "coterie/kept"
"""Metrics in which `_Follow` reports, since only metrics return from several devices' processes."""


def package_of(module: object) -> str:
    """Return the package whose Trainer trains a module: lightning.pytorch or pytorch_lightning."""
    home = own_base(module)
    ours = home is None or home.__module__.startswith("lightning.")
    return "lightning.pytorch" if ours else "pytorch_lightning"


def train(engine: LightningTrainer, module: Any, plan: Training, seed: int, work: float) -> Trained:
    """Train a module in place, from the plan's first epoch.

    The module ends on the CPU. `seed` is that of all global generators meanwhile; `work` is the
    share of the batches to train on, under 1 for a straggler.
    """
    follow = _Follow(engine, plan, work)
    callbacks = [*deepcopy(engine.callbacks), *deepcopy(plan.callbacks), *plan.hooks, follow]
    with seeded_everywhere(seed), _quiet():
        limits: dict[str, Any] = {} if plan.validation is not None else {"limit_val_batches": 0}
        arguments = {**limits, **plan.arguments, "logger": plan.logger}
        trainer = _build(engine, module, arguments, plan.max_epochs, callbacks)
        _go_on(trainer, plan)
        if several_devices(plan.arguments):
            _drop_generators(plan.loader, plan.validation)
        with _unmonitored_told(plan):
            trainer.fit(module, **data_with(plan.source, plan.loader, plan.validation))
        module.cpu().zero_grad(set_to_none=True)
        trainer.strategy.optimizers = []  # large, and kept alive by cycles until they are collected
    logged = dict(trainer.callback_metrics)
    steps, total, counted = logged.pop(_REPORT, torch.zeros(3)).tolist()
    kept = logged.pop(_KEPT, None)
    loss = numbers({"loss": total / counted}) if counted else {}
    metrics, scheduled = loss | numbers(logged), bool(trainer.lr_scheduler_configs)
    return Trained(steps=round(steps), metrics=metrics, scheduled=scheduled, kept=kept)


@contextmanager
def _unmonitored_told(plan: Training) -> Iterator[None]:
    """Explain the remedy if a callback or scheduler monitors a metric of validation data."""
    try:
        yield
    except Exception as error:
        watched = _WATCHED.search(str(error))
        if watched is None or plan.validation is not None:
            raise
        raise ContractError(
            f"{watched[1]} is watched, and clients do not log it, as they have no validation data; "
            "give holdout=0.1 (on the command line method.holdout), or watch what training logs."
        ) from error


def score(
    engine: LightningTrainer,
    module: Any,
    plan: Training,
    seed: int,
    stage: Literal["validate", "test"] = "validate",
) -> dict[str, float]:
    """Return what a module logs in its validation or test steps; see `Training.validation`."""
    callbacks = deepcopy([*engine.callbacks, *plan.callbacks])
    # On several devices samples would be scored twice, to share them evenly.
    alone = {k: v for k, v in plan.arguments.items() if k not in ("devices", "strategy")}
    with seeded_everywhere(seed), _quiet():
        arguments = {**alone, "logger": plan.logger}
        trainer = _build(engine, module, arguments, plan.max_epochs, callbacks)
        _go_on(trainer, plan)
        run = trainer.validate if stage == "validate" else trainer.test
        run(module, verbose=False, **data_with(plan.source, None, plan.validation))
        module.cpu()
    return numbers(trainer.callback_metrics)


def numbers(logged: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite scalars among logged metrics, under names that the tracker takes."""
    found: dict[str, float] = {}
    for name, value in logged.items():
        if isinstance(value, Tensor) and value.numel() != 1:
            continue
        number = float(value)
        if math.isfinite(number):
            found[f"logged/{name}" if name in RESERVED else name] = number
    return found


def _build(
    engine: LightningTrainer,
    module: Any,
    arguments: Mapping[str, Any],
    max_epochs: int,
    callbacks: list[Any],
) -> Any:
    """Return a Trainer with the user's arguments: no checkpoints, bars, summary or sanity check."""
    package = package_of(module)
    plugins: list[Any] = []
    if isinstance(arguments.get("strategy", ""), str):  # else SLURM's variables crash it
        plugins.append(import_module(f"{package}.plugins.environments").LightningEnvironment())
    keys: dict[str, Any] = {
        "accelerator": engine.accelerator,
        "devices": 1,
        "precision": engine.precision,
        "deterministic": "warn" if engine.deterministic else None,
        "num_sanity_val_steps": 0,
        "strategy": "ddp_spawn" if several_devices(arguments) else "auto",
        "logger": False,
        **arguments,
    }
    keys["plugins"] = [*plugins, *(arguments.get("plugins") or [])]
    return import_module(package).Trainer(
        max_epochs=max_epochs,
        callbacks=callbacks,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **keys,
    )


def _go_on(trainer: Any, plan: Training) -> None:
    """Let the Trainer continue the epoch and step counts of earlier rounds.

    Of a module that optimises by hand, each of its optimisers counts a step for each batch.
    """
    loop = trainer.fit_loop
    for counts in (loop.epoch_progress.current, loop.epoch_progress.total):
        counts.ready = counts.started = counts.processed = counts.completed = plan.first_epoch
    loop._resuming_from_checkpoint = bool(plan.first_epoch)  # else it opens the loader twice
    if plan.loader is None:
        _count_steps(loop, plan.step, plan.step)
        return
    try:
        batches = len(plan.loader) * plan.first_epoch
    except TypeError:
        return
    every = int(getattr(trainer, "accumulate_grad_batches", 1) or 1)
    steps = math.ceil(len(plan.loader) / every) * plan.first_epoch
    _count_steps(loop, steps, batches)
    loop.epoch_loop._batches_that_stepped = batches


def _count_steps(loop: Any, steps: int, by_hand: int) -> None:
    """Let the Trainer count steps on from these, in automatic and in manual optimisation."""
    progress = loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total
    progress.ready = progress.completed = steps
    hand = loop.epoch_loop.manual_optimization.optim_step_progress.total
    hand.ready = hand.completed = by_hand


class _EnoughError(Exception):
    """A signal that ends a training before its first step."""


class _BeforeTheFirstStep(Callback):
    """Callback that ends the training as soon as every parameter has a shape and a gradient."""

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        raise _EnoughError


class _Blank:
    """A loader's first batch, with zeros in place of its values."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        yield apply_to_collection(next(iter(self._loader)), Tensor, torch.zeros_like)

    def __len__(self) -> int:
        return 1


def materialised(module: Any, source: Callable[[], Source]) -> Any:
    """Return a module whose lazy parameters, and layers from `setup`, have been built.

    Args:
        module: A LightningModule.
        source: Opens its data, whose values the result does not depend on.

    Returns:
        The module itself if nothing is missing, else a copy after one forward pass.
    """
    found = [*module.parameters()]
    if found and not any(map(is_lazy, found)):
        return module
    whole = copy_of(module)
    engine = LightningTrainer(accelerator="cpu")
    with seeded_everywhere(0), _quiet(), contextlib.suppress(_EnoughError):
        trainer = _build(engine, whole, {"limit_val_batches": 0}, 1, [_BeforeTheFirstStep()])
        opened = source()
        trainer.fit(whole, **data_with(opened, _Blank(opened.loader), None))
    for name, kept in module.named_buffers():
        if not is_lazy(kept):
            whole.get_buffer(name).copy_(kept)
    whole.zero_grad(set_to_none=True)
    whole._trainer = None
    return whole


class _Follow(Callback):
    """Callback that counts steps and epochs, ends the round, and keeps the optimisers' state."""

    def __init__(self, engine: LightningTrainer, plan: Training, work: float) -> None:
        self._stop, self._work, self._keep, self._kept = engine.stop, work, plan.keep, plan.kept
        self._first_epoch, self._whole = plan.first_epoch, plan.epochs
        self._epochs, self._steps, self._most = 0, 0, math.inf
        self._losses: list[Tensor] = []
        self._sum = 0.0
        self._counted = 0

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the function that asks to stop, which other processes cannot call."""
        return vars(self) | {"_stop": _never_stop}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Unpickle, and silence the Trainer in this process too."""
        vars(self).update(state)
        _silence()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Load the client's kept optimiser state, and limit a straggler's batches."""
        if not pl_module.automatic_optimization and self._first_epoch:
            count = trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress.total
            count.ready = count.completed = count.completed * len(trainer.optimizers)
        if self._work < 1:
            self._most = share_of_steps(self._work, self._whole * trainer.num_training_batches)
        if self._kept is not None:
            _restore(trainer, self._kept)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Note the loss, and stop where the run stops or a straggler has done its share."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, Tensor) and loss.numel() == 1:
            self._losses.append(loss.detach().reshape(()))
            if len(self._losses) == 256:
                self._add_up()
        self._steps += 1
        if self._steps >= self._most:
            trainer.should_stop = True
        self._stop()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """End the training after the round's epochs."""
        self._epochs += 1
        if self._epochs >= self._whole:
            trainer.should_stop = True

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Report the steps, the mean losses over devices, and the state for the next round."""
        self._add_up()
        found = [float(self._steps), self._sum, float(self._counted)]
        report = torch.tensor(found, dtype=torch.float64, device=pl_module.device)
        trainer.callback_metrics[_REPORT] = trainer.strategy.reduce(report, reduce_op="mean")
        if self._keep:
            trainer.callback_metrics[_KEPT] = _state(trainer)

    def _add_up(self) -> None:
        if self._losses:
            self._sum += float(torch.stack(self._losses).double().sum())
            self._counted += len(self._losses)
            self._losses.clear()


def _drop_generators(*loaders: Any) -> None:
    """Let loaders draw from the global generators, whose seeds travel to other processes.

    A `torch.Generator` does not: PyTorch frees its shared state before the process has started.
    """
    for loader in loaders:
        parts: list[Any] = [loader, getattr(loader, "sampler", None)]
        for part in parts:
            if hasattr(part, "generator"):
                part.generator = None


def _never_stop() -> None:
    """Return without stopping."""


def _state(trainer: Any) -> Tensor:
    """Return the state of optimisers, schedulers, precision and callbacks, as bytes."""
    content = {
        "optimizers": [each.state_dict() for each in trainer.optimizers],
        "schedulers": [each.scheduler.state_dict() for each in trainer.lr_scheduler_configs],
        "precision": trainer.precision_plugin.state_dict(),
        "callbacks": {each.state_key: each.state_dict() for each in trainer.callbacks},
    }
    file = io.BytesIO()
    torch.save(content, file)
    return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)


def _restore(trainer: Any, kept: Tensor) -> None:
    """Load what `_state` gave."""
    try:
        content = unpickled(kept.numpy().tobytes(), "the state", "keep plain values")
    except DataError as error:
        raise ContractError(
            "keep_optimizer=true: an optimiser, scheduler or callback keeps objects that are "
            "neither tensors nor plain values; leave keep_optimizer out."
        ) from error
    for optimizer, state in zip(trainer.optimizers, content["optimizers"], strict=True):
        optimizer.load_state_dict(state)
    for config, state in zip(trainer.lr_scheduler_configs, content["schedulers"], strict=True):
        config.scheduler.load_state_dict(state)
    trainer.precision_plugin.load_state_dict(content["precision"])
    for callback in trainer.callbacks:
        if state := content["callbacks"].get(callback.state_key):
            callback.load_state_dict(deepcopy(state))


def _silence() -> None:
    for name in ("lightning.pytorch", "pytorch_lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the Trainer's messages and hints within the context."""
    _silence()
    with warnings.catch_warnings():
        for name in ("lightning", "pytorch_lightning"):
            warnings.filterwarnings("ignore", module=name)
        yield
