"""Seeds that depend on what is drawn, never on the process that draws it."""

import contextlib
import functools
import hashlib
from collections.abc import Iterator
from urllib.parse import quote

import torch

Part = int | str


def derive_seed(seed: int, *parts: Part) -> int:
    """A seed for one purpose, such as `derive_seed(run_seed, "client", round, client)`.

    Returns:
        An integer in [0, 2^63), spread evenly and independent between different parts.
    """
    text = "/".join(
        f"int:{part}" if type(part) is int else _quoted(type(part).__name__, str(part))
        for part in (seed, *parts)
    )
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


@functools.lru_cache
def _quoted(kind: str, text: str) -> str:
    """Quoted, so that ("a/str:b",) and ("a", "b") differ."""
    return f"{kind}:{quote(text, safe='')}"


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run the body with PyTorch's global generators seeded, and put them back after it."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=devices):
        if _has_cuda():
            torch.manual_seed(seed)  # a device that starts in the body is seeded too
        else:  # there the function above spends its time on noting who called it
            torch.default_generator.manual_seed(seed)
        yield


@functools.cache
def _has_cuda() -> bool:
    return torch.cuda.is_available()
