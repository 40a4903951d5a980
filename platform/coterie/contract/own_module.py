"""The interface of methods that train a user's own LightningModule with its own loaders."""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Protocol, runtime_checkable

from lightning import Trainer
from torch import Tensor
from torch.nn import BatchNorm1d
from torch.nn.parameter import is_lazy

from coterie.config.explain import nearest
from coterie.contract.loaders import Source
from coterie.contract.phase import ServerState, Tensors
from coterie.contract.silent_logger import SilentLogger
from coterie.errors import ConfigError, listed

_OURS = frozenset(
    {
        "max_epochs",
        "min_epochs",
        "max_steps",
        "min_steps",
        "fast_dev_run",
        "callbacks",
        "logger",
        "enable_checkpointing",
        "enable_progress_bar",
        "enable_model_summary",
    }
)
"""Arguments of the Trainer that the run decides."""


_IN_PROCESSES = ("ddp_spawn", "ddp_spawn_find_unused_parameters_true", "ddp_fork")
"""The Trainer's strategies for several devices that start processes from the present one."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """A client's local training, or validation, of a user's module.

    Attributes:
        source: The data set, with the user's data module.
        loader: The loader of what is trained on; None to validate only.
        validation: The loader of the client's held-out samples; None without.
        first_epoch: The epoch at which this training begins, counted over the run's rounds.
        epochs: Epochs to train.
        max_epochs: Epochs of the whole run, the Trainer's `max_epochs`.
        arguments: Of the user, for the Trainer.
        callbacks: Of the user, for the Trainer; each training has fresh copies.
        kept: The state of optimisers, schedulers and callbacks of the last round; None to restart.
        keep: Whether to return that state.
        hooks: Strategies' callbacks, which are not copied.
        step: The Trainer's `global_step`, where nothing is trained.
        logger: The module's `self.logger`, which keeps nothing on clients.
    """

    source: Source
    loader: Any = None
    validation: Any = None
    first_epoch: int = 0
    epochs: int = 1
    max_epochs: int = 1
    arguments: Mapping[str, Any] = field(default_factory=dict)
    callbacks: tuple[Any, ...] = ()
    kept: Tensor | None = None
    keep: bool = False
    hooks: tuple[Any, ...] = ()
    step: int = 0
    logger: Any = field(default_factory=SilentLogger)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """Report of a training.

    Attributes:
        steps: Batches trained on.
        metrics: What the module logged, as the Trainer has it at the end, and "loss", the mean of
            what `training_step` returned.
        scheduled: Whether the module has a learning-rate scheduler.
        kept: The state of optimisers, schedulers and callbacks, uint8 (bytes,); None unless asked
            for.
    """

    steps: int
    metrics: Mapping[str, float]
    scheduled: bool = False
    kept: Tensor | None = None


@runtime_checkable
class FederatesModule(Protocol):
    """A method whose model is a user's own LightningModule, evaluated by its own steps."""

    def module_for(self, server: ServerState, state: Tensors | None) -> Any:
        """Return the module with the server's values and, if given, a client's kept values."""
        ...

    def fill(self, whole: Callable[[Any], Any], seed: int) -> None:
        """Build the module's lazy layers and those that `setup` builds, if they are missing.

        Args:
            whole: Takes a module and returns it, or a copy with these layers.
            seed: Of the first weights.
        """
        ...

    @property
    def trainer_arguments(self) -> Mapping[str, Any]:
        """The user's arguments for the Trainer."""
        ...

    @property
    def epochs(self) -> int:
        """Local epochs of a round."""
        ...

    @property
    def clients_validate(self) -> bool:
        """Whether clients run `validation_step` on samples of their own."""
        ...

    @property
    def personal(self) -> tuple[str, ...]:
        """Patterns of the layers that stay with each client."""
        ...


def copy_of(module: Any) -> Any:
    """Return a copy of a module that shares nothing with it.

    A tensor that is computed from parameters, such as the weight under `weight_norm`, has its
    values in the copy: `deepcopy` alone refuses it, and the next forward pass computes it again.
    """
    computed = {
        id(value): value.detach().clone()
        for part in module.modules()
        for value in vars(part).values()
        if isinstance(value, Tensor) and not value.is_leaf
    }
    return copy.deepcopy(module, computed)


def several_devices(arguments: Mapping[str, Any]) -> bool:
    """Return whether a Trainer with these arguments trains on several devices."""
    given = arguments.get("devices", 1)
    return len(given) > 1 if isinstance(given, list | tuple) else given not in (1, "1", "auto")


def own_base(value: object, name: str = "LightningModule") -> type | None:
    """Return an object's base class of this name, from either Lightning package, or None."""
    found = [kind for kind in type(value).__mro__ if kind.__name__ == name]
    return found[-1] if found else None


def has_step(module: object, hook: str) -> bool:
    """Return whether a module overrides a hook, such as `validation_step`."""
    return getattr(type(module), hook) is not getattr(own_base(module), hook)


def layers_like(pattern: str, names: Sequence[str]) -> str:
    """Suggest what to give in place of a pattern that matches none of a module's layers."""
    tops = list(dict.fromkeys(f"{name.partition('.')[0]}.*" for name in names))
    if any(fnmatchcase(name, f"{pattern}.*") for name in names):
        return f"give {pattern}.*."
    if close := nearest(pattern, tops):
        return f"did you mean {close}?"
    return f"the module has {listed(tops)}."


def needs_several_rows(module: Any) -> bool:
    """Return whether a module has a layer that cannot be trained on a batch of one row."""
    return any(isinstance(part, BatchNorm1d) for part in module.modules())


def check_module(module: Any, arguments: Mapping[str, Any]) -> None:
    """Refuse modules that no Trainer can train, and Trainer arguments that the run decides.

    Raises:
        ConfigError: In one sentence.
    """
    kind, base = type(module).__name__, own_base(module)
    if base is None:
        raise ConfigError(f"module: {kind} is not a LightningModule; inherit from it.")
    for hook in ("training_step", "configure_optimizers"):
        if not has_step(module, hook):
            raise ConfigError(f"module: {kind} has no {hook}; write one.")
    known = inspect.signature(Trainer.__init__).parameters
    for key in arguments:
        if key in _OURS:
            raise ConfigError(f"trainer: the run decides {key}; leave it out.")
        if key not in known:
            raise ConfigError(f"trainer: Lightning's Trainer has no argument {key}; leave it out.")
    strategy = arguments.get("strategy", "")
    several = several_devices(arguments) and isinstance(strategy, str)
    if several and strategy not in ("", "auto", *_IN_PROCESSES):
        raise ConfigError(
            f"trainer: strategy={strategy} starts the whole program again for each device; use "
            "ddp_spawn."
        )
    for name, value in module.state_dict().items():
        if isinstance(value, Tensor) and not is_lazy(value) and value.is_complex():
            raise ConfigError(f"module: {name} is complex, and only real numbers are averaged.")
