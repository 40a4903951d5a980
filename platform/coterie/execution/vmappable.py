"""Checks whether modules can be trained as one with the same results as each alone."""

import contextlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

from lightning import LightningModule
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from coterie.execution.without_trainer import (
    check_supported,
    optimizer_and_schedule,
    overrides,
    unsupported,
)

_ELEMENTWISE = (SGD, Adam, AdamW)
"""Optimisers that update each element of a parameter independently of the others."""
_REFUSED_HOOKS = (
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
)
"""Hooks of a step, which would see the loss or the gradients of all clients."""
_PLAIN = (bool, int, float, str, type(None))


def check_vmappable(module: LightningModule) -> None:
    """Raise a ConfigError if a module needs a Trainer, or overrides hooks that run in a step."""
    check_supported(module, "vmap")
    for hook in _REFUSED_HOOKS:
        if overrides(module, hook):
            raise unsupported(module, f"overrides {hook}", "vmap")


def architecture(module: LightningModule) -> Hashable:
    """Return what modules must have in common to be trained as one."""
    parameters, buffers = module.named_parameters(), module.named_buffers()
    return (
        type(module),
        tuple((name, p.shape, p.dtype, p.requires_grad) for name, p in parameters),
        tuple((name, b.shape, b.dtype) for name, b in buffers),
    )


def modes(module: LightningModule) -> tuple[bool, ...]:
    """Return whether each submodule is in train mode."""
    return tuple(part.training for part in module.modules())


def trained(module: LightningModule) -> tuple[bool, ...]:
    """Return whether each parameter takes a gradient."""
    return tuple(parameter.requires_grad for parameter in module.parameters())


def check_alike(modules: Sequence[LightningModule]) -> None:
    """Check that the modules' attributes are equal, since one module's are used for all."""
    first = _attributes(modules[0])
    for module in modules[1:]:
        own = _attributes(module)
        if own != first:
            name = next(n for n in {**first, **own} if first.get(n) != own.get(n))
            raise unsupported(module, f"has another {name} for each client", "vmap")


def vmapped_optimizer(
    modules: Sequence[LightningModule], parameters: Mapping[str, Tensor]
) -> Optimizer:
    """Return the modules' optimiser over vmapped parameters.

    Raises:
        ConfigError: If an optimiser is not elementwise, or they differ.
    """
    found, _ = optimizer_and_schedule(modules[0], "vmap")
    if type(found) not in _ELEMENTWISE:
        raise unsupported(
            modules[0], f"trains by {type(found).__name__}, not by SGD, Adam or AdamW", "vmap"
        )
    groups = _groups(modules[0], found)
    for module in modules[1:]:
        other, _ = optimizer_and_schedule(module, "vmap")
        if type(other) is not type(found) or _groups(module, other) != groups:
            raise unsupported(module, "has another optimiser for each client", "vmap")
    for group, named in zip(found.param_groups, groups, strict=True):
        group["params"] = [parameters[name] for name in named["params"]]
    return found


def _groups(module: LightningModule, optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return an optimiser's groups of parameters with their options, parameters by name."""
    names = {parameter: name for name, parameter in module.named_parameters()}
    return [
        {**group, "params": [names[parameter] for parameter in group["params"]]}
        for group in optimizer.param_groups
    ]


@contextlib.contextmanager
def refusing(module: LightningModule) -> Iterator[None]:
    """Turn an error about an operation without `vmap` support into one about the module."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        if "vmap" not in reason and "atching rule" not in reason:
            raise
        raise unsupported(module, f"cannot be vmapped ({reason[:160]})", "vmap") from error


def _attributes(module: LightningModule) -> dict[str, Any]:
    """Return numbers, strings and booleans by submodule and attribute name."""
    return {
        f"{place}.{name}".strip("."): value
        for place, part in module.named_modules()
        for name, value in vars(part).items()
        if type(value) in _PLAIN
    }
