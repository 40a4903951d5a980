"""Settings that PyTorch, NumPy and Python have once per process or thread.

Clients share processes: what one sets and leaves would change the bits of those behind it. And what
a program sets before its run would hold in the driver alone, not in the actors.
"""

import ctypes
import os
import resource
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np
import torch

from coterie.execution.torch_modes import (
    dispatch_modes,
    function_modes,
    global_hooks,
    saved_tensor_hooks,
    set_dispatch_modes,
    set_function_modes,
    set_global_hooks,
    set_saved_tensor_hooks,
    set_transforms,
    transforms,
)

Setting = tuple[Callable[[], Any], Callable[[Any], Any]]
"""How a setting is read, and how it is set."""

_TINY = 5e-324
"""A float that becomes 0 where denormal numbers are flushed."""
_guards: list[Any] = []
"""Guards of inference mode, which ends with its object."""


def numeric_settings() -> dict[str, Any]:
    """Return the settings of this process by which numbers are computed."""
    return {name: read() for name, (read, _) in _NUMERIC.items()}


def all_settings() -> dict[str, Any]:
    """Return all settings of this process and thread."""
    return {name: read() for name, (read, _) in _ALL.items()}


def apply_settings(values: Mapping[str, Any]) -> None:
    """Set those of the settings that differ."""
    for name, value in values.items():
        read, write = _ALL[name]
        if read() != value:
            write(value)


@contextmanager
def settings_kept() -> Iterator[None]:
    """Restore all settings after the body, even if it raises."""
    before = all_settings()
    try:
        yield
    finally:
        apply_settings(before)


def _precisions() -> tuple[str, ...]:
    """Return the precision of float32 products, as a whole and by library and kind."""
    get = torch._C._get_fp32_precision_getter
    whole = "mixed"
    with suppress(RuntimeError):  # a program has set them one by one
        whole = torch.get_float32_matmul_precision()
    return whole, *(get(*place) for place in _PLACES)


def _set_precisions(values: tuple[str, ...]) -> None:
    whole, *single = values
    if whole != "mixed":
        torch.set_float32_matmul_precision(whole)
    for place, value in zip(_PLACES, single, strict=True):
        if torch._C._get_fp32_precision_getter(*place) != value:
            torch._C._set_fp32_precision_setter(*place, value)


_PLACES = tuple(
    (library, kind)
    for library, kinds in {
        "generic": ("all",),
        "cuda": ("all", "matmul", "conv", "rnn"),
        "mkldnn": ("all", "matmul", "conv", "rnn"),
    }.items()
    for kind in kinds
)


def _libraries() -> tuple[bool, ...]:
    cudnn: Any = torch.backends.cudnn
    mkldnn: Any = torch.backends.mkldnn
    return mkldnn.enabled, cudnn.enabled, cudnn.benchmark, cudnn.deterministic


def _set_libraries(values: tuple[bool, ...]) -> None:
    cudnn: Any = torch.backends.cudnn
    mkldnn: Any = torch.backends.mkldnn
    mkldnn.enabled, cudnn.enabled, cudnn.benchmark, cudnn.deterministic = values


def _set_device(device: torch.device) -> None:
    # A default device costs time in each call of PyTorch, also the CPU; None is the CPU too.
    torch.set_default_device(None if device.type == "cpu" else device)


def _set_inference(enabled: bool) -> None:
    _guards.append(torch._C._InferenceMode(enabled))


def _nesting() -> int:
    """Return how many contexts of autocast have been entered and not left."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def _set_nesting(wanted: int) -> None:
    while torch.autocast_decrement_nesting() > wanted:
        pass
    torch.clear_autocast_cache()


def _folder() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109 - a tenth of the time
    except FileNotFoundError:  # it was deleted
        return None


def _set_folder(folder: str | None) -> None:
    with suppress(OSError):  # it was deleted
        if folder is not None:
            os.chdir(folder)


def _raising() -> tuple[Any, ...]:
    """Return the warning filters that raise errors; libraries may add and remove other filters."""
    return tuple(found for found in warnings.filters if found[0] == "error")


def _set_raising(wanted: tuple[Any, ...]) -> None:
    filters: Any = warnings.filters
    filters[:] = [found for found in filters if found[0] != "error" or found in wanted]


def _timers() -> tuple[bool, ...]:
    """Return which timers run whose signal would end the process."""
    return tuple(signal.getitimer(kind)[0] > 0 for kind in _TIMERS)


def _stop_timers(wanted: tuple[bool, ...]) -> None:
    for kind, runs in zip(_TIMERS, wanted, strict=True):
        if not runs:
            signal.setitimer(kind, 0)


_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


def _limits() -> tuple[tuple[int, int], ...]:
    return tuple(resource.getrlimit(kind) for kind in _LIMITED)


def _set_limits(wanted: tuple[tuple[int, int], ...]) -> None:
    for kind, (soft, hard) in zip(_LIMITED, wanted, strict=True):
        for highest in (hard, resource.getrlimit(kind)[1]):  # only root raises a hard limit again
            with suppress(OSError, ValueError):
                resource.setrlimit(kind, (soft, highest))
                break


_LIMITED = (
    *(resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_DATA),
    *(resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE),
)
"""Limits of a process, each in its own unit."""

_C: Any = ctypes.CDLL(None)
_ROUNDING: Mapping[str, Setting] = (
    {"rounding": (_C.fegetround, _C.fesetround)} if hasattr(_C, "fesetround") else {}
)
"""The direction in which the processor rounds; not all systems have it."""

_NUMERIC: Mapping[str, Setting] = {
    "dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "precisions": (_precisions, _set_precisions),
    "libraries": (_libraries, _set_libraries),
    "denormal": (lambda: _TINY * 1.0 == 0.0, torch.set_flush_denormal),
}

_ALL: Mapping[str, Setting] = {
    **_ROUNDING,
    "recursion": (sys.getrecursionlimit, sys.setrecursionlimit),
    "transforms": (transforms, set_transforms),
    "function modes": (function_modes, set_function_modes),
    "dispatch modes": (dispatch_modes, set_dispatch_modes),
    "saved tensors": (saved_tensor_hooks, set_saved_tensor_hooks),
    "hooks": (global_hooks, set_global_hooks),
    **_NUMERIC,
    "device": (torch.get_default_device, _set_device),
    "threads": (torch.get_num_threads, torch.set_num_threads),
    "inference": (torch.is_inference_mode_enabled, _set_inference),
    "gradients": (torch.is_grad_enabled, torch.set_grad_enabled),
    "anomalies": (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    **{
        f"{part} on {device}": (
            partial(getattr(torch, read), device),
            partial(getattr(torch, write), device),
        )
        for device in ("cpu", "cuda")
        for part, read, write in (
            ("autocast", "is_autocast_enabled", "set_autocast_enabled"),
            ("its type", "get_autocast_dtype", "set_autocast_dtype"),
        )
    },
    "nesting": (_nesting, _set_nesting),
    "errors of NumPy": (np.geterr, lambda kinds: np.seterr(**kinds)),
    "warnings": (_raising, _set_raising),
    "folder": (_folder, _set_folder),
    "timers": (_timers, _stop_timers),
    "limits": (_limits, _set_limits),
}
