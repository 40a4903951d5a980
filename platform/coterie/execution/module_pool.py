"""Modules that are kept between tasks, so that a task need not build its own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

from lightning import LightningModule
from torch import Tensor

from coterie.contract.client import ModuleT
from coterie.contract.phase import Tensors
from coterie.contract.seeds import seeded


@dataclass(frozen=True)
class _Built:
    """A module with its initial values, training modes and `requires_grad` flags."""

    module: LightningModule
    values: Tensors
    modes: Mapping[str, bool]
    trained: Mapping[str, bool]

    @classmethod
    def of(cls, module: LightningModule, like: "_Built | None") -> "_Built":
        """Record a newly built module, which may resemble another."""
        tensors = _tensors(module).items()
        values = like.values if like else {key: value.clone() for key, value in tensors}
        modes = {name: part.training for name, part in module.named_modules()}
        trained = {name: value.requires_grad for name, value in module.named_parameters()}
        return cls(module, values, modes, trained)

    @property
    def whole(self) -> bool:
        """Whether the module still has the tensors and submodules that it was built with."""
        shapes = {key: value.shape for key, value in _tensors(self.module).items()}
        return (
            shapes == {key: value.shape for key, value in self.values.items()}
            and self.trained.keys() == dict(self.module.named_parameters()).keys()
            and self.modes.keys() == dict(self.module.named_modules()).keys()
        )

    def reset(self) -> LightningModule:
        """Restore the module's initial state."""
        for key, value in _tensors(self.module).items():
            value.copy_(self.values[key])
        self.module.zero_grad(set_to_none=True)
        for name, part in self.module.named_modules():
            part.training = self.modes[name]
        for name, value in self.module.named_parameters():
            value.requires_grad_(self.trained[name])
        return self.module


class ModulePool:
    """Pool that builds the module of each key once per process and resets it for every task.

    Args:
        seed: Of the initial values.
        finish: Called once with each module that has been built.
        first: A pool whose modules have the same initial values.
    """

    def __init__(
        self,
        seed: int,
        finish: Callable[[LightningModule], None] = lambda module: None,
        first: "ModulePool | None" = None,
    ) -> None:
        self._seed, self._finish, self._first = seed, finish, first
        self._built: dict[str, _Built] = {}

    def beside(self) -> "ModulePool":
        """Return a pool of other modules that shares this pool's memory of the initial state."""
        return ModulePool(self._seed, self._finish, self)

    def fresh(self, key: str, build: Callable[[], ModuleT]) -> ModuleT:
        """Return the module in its initial state; every process builds it from the same seed."""
        if key not in self._built or not self._built[key].whole:  # a client has changed its parts
            with seeded(self._seed):
                built = build()
            self._finish(built)
            first = None if self._first is None else self._first._built.get(key)
            self._built[key] = _Built.of(built, first)
        module = self._built[key].reset()
        return cast("ModuleT", module)


def _tensors(module: LightningModule) -> dict[str, Tensor]:
    """Return a module's state with all its buffers, also non-persistent ones."""
    return {**dict(module.named_buffers()), **module.state_dict()}
