"""Seeds that depend on their purpose, never on the process that draws."""

import contextlib
import functools
import hashlib
import operator
import random
from collections.abc import Callable, Iterator
from numbers import Integral
from typing import TypeVar
from urllib.parse import quote

import numpy as np
import torch
from torch import nn

Part = int | str
ModuleT = TypeVar("ModuleT", bound=nn.Module)


def derive_seed(seed: int, *parts: Part) -> int:
    """Derive a seed for one purpose, such as `derive_seed(run_seed, "client", round, client)`.

    Returns:
        An integer in [0, 2^63), uniform, and independent for different parts.
    """
    text = "/".join(map(_told, (seed, *parts)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def _told(part: object) -> str:
    if not isinstance(part, bool) and isinstance(part, Integral):
        return f"int:{operator.index(part)}"  # NumPy's numbers too
    return _quoted(type(part).__name__, str(part))


@functools.lru_cache
def _quoted(kind: str, text: str) -> str:
    """Return the text quoted, so that ("a/str:b",) and ("a", "b") differ."""
    return f"{kind}:{quote(text, safe='')}"


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed PyTorch's global generators for the body, and restore them after it."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=devices):
        if _has_cuda():
            torch.manual_seed(seed)  # also seeds a device that is initialised in the body
        else:  # torch.manual_seed would spend its time on a stack trace for CUDA's lazy start
            torch.default_generator.manual_seed(seed)
        yield


@contextlib.contextmanager
def seeded_everywhere(seed: int) -> Iterator[None]:
    """Seed PyTorch, NumPy and Python for a user's code, and restore their generators after it."""
    before, numpy_before = random.getstate(), np.random.get_state()  # noqa: NPY002 - a user's
    try:
        with seeded(seed):
            random.seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002
            yield
    finally:
        random.setstate(before)
        np.random.set_state(numpy_before)  # noqa: NPY002


def blank(build: Callable[[], ModuleT]) -> ModuleT:
    """Build a module whose random values the caller replaces; global generators stay unchanged."""
    with seeded(0):
        return build()


@functools.cache
def _has_cuda() -> bool:
    return torch.cuda.is_available()
