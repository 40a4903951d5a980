"""Modules kept between turns, so that a turn does not build its own."""

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
    """A model and what a turn may change of it: values, training modes, what is frozen."""

    module: LightningModule
    values: Tensors
    modes: Mapping[str, bool]
    trained: Mapping[str, bool]

    @classmethod
    def of(cls, module: LightningModule) -> "_Built":
        """A newly built model."""
        values = {key: value.clone() for key, value in _tensors(module).items()}
        modes = {name: part.training for name, part in module.named_modules()}
        trained = {name: value.requires_grad for name, value in module.named_parameters()}
        return cls(module, values, modes, trained)

    def reset(self) -> LightningModule:
        """The model as it was built."""
        for key, value in _tensors(self.module).items():
            value.copy_(self.values[key])
        self.module.zero_grad(set_to_none=True)
        for name, part in self.module.named_modules():
            part.training = self.modes[name]
        for name, value in self.module.named_parameters():
            value.requires_grad_(self.trained[name])
        return self.module


class ModulePool:
    """Models kept between turns, each put back to its initial state when it is asked for."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._built: dict[str, _Built] = {}

    def fresh(self, kind: str, build: Callable[[], ModuleT]) -> ModuleT:
        """The model in its initial state; every process builds it from the same seed."""
        if kind not in self._built:
            with seeded(self._seed):
                built = build()
            self._built[kind] = _Built.of(built)
        module = self._built[kind].reset()
        return cast("ModuleT", module)


def _tensors(module: LightningModule) -> dict[str, Tensor]:
    """A model's state, and the buffers that are not part of it because they do not persist."""
    return {**dict(module.named_buffers()), **module.state_dict()}
