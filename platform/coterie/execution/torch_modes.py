"""Modes and hooks of PyTorch that code has entered: they change what every operation does.

PyTorch has no public way to leave those whose context object is gone.
"""

from importlib import import_module
from typing import Any

import torch
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

_core: Any = torch._C
_autograd: Any = _core._autograd
_functorch: Any = _core._functorch
transforms, set_transforms = (
    _functorch.get_dynamic_layer_stack_depth,
    _functorch.pop_dynamic_layer_stack_and_undo_to_depth,
)
"""How many transforms of functions, such as vmap, have been entered, and how to leave the last."""
_HOOKS: tuple[dict[int, Any], ...] = tuple(
    hooks
    for library in ("torch.nn.modules.module", "torch.optim.optimizer")
    for name, hooks in sorted(vars(import_module(library)).items())
    if name.startswith("_global") and isinstance(hooks, dict)
)
"""Hooks that every module and every optimizer calls, by kind."""


def function_modes() -> tuple[Any, ...]:
    """Return the active function modes, except the default device's."""
    return tuple(mode for mode in _entered() if not isinstance(mode, DeviceContext))


def set_function_modes(wanted: tuple[Any, ...]) -> None:
    """Exit the function modes that are not among these."""
    every = _entered()
    for _ in every:
        _core._pop_torch_function_stack()
    for mode in every:
        if isinstance(mode, DeviceContext) or any(mode is one for one in wanted):
            _core._push_on_torch_function_stack(mode)


def _entered() -> list[Any]:
    return [_core._get_function_stack_at(n) for n in range(_core._len_torch_function_stack())]


def dispatch_modes() -> int:
    """Return the number of active dispatch modes."""
    return len(_get_current_dispatch_mode_stack())


def set_dispatch_modes(wanted: int) -> None:
    """Exit the innermost dispatch modes until this number is left."""
    while dispatch_modes() > wanted:
        _core._pop_torch_dispatch_stack(None)


def saved_tensor_hooks() -> Any:
    """Return the innermost pair of hooks on saved tensors; None if there is none."""
    return _autograd._top_saved_tensors_default_hooks(True)


def set_saved_tensor_hooks(wanted: Any) -> None:
    """Remove the innermost hooks on saved tensors until these are the innermost."""
    while (found := saved_tensor_hooks()) is not None and found != wanted:
        _autograd._pop_saved_tensors_default_hooks()


def global_hooks() -> tuple[tuple[tuple[int, Any], ...], ...]:
    """Return the hooks that all modules and optimizers call, by kind."""
    return tuple(tuple(hooks.items()) for hooks in _HOOKS)


def set_global_hooks(wanted: tuple[tuple[tuple[int, Any], ...], ...]) -> None:
    """Remove all global hooks of each kind except these."""
    for hooks, own in zip(_HOOKS, wanted, strict=True):
        hooks.clear()
        hooks.update(own)
