"""Refuses sizes beyond this machine's memory, before memory is taken."""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from coterie.config.free_memory import unclaimed_memory
from coterie.config.schema import ClusterConfig
from coterie.contract.phase import Phase, ServerState
from coterie.errors import ConfigError, described

_GIB = 2**30
_SUM = 16
"""Bytes of an exact sum for each number of a slot: two integers of 64 bits."""
_STORE = 0.3
"""Share of the memory that Ray takes for its object store; beyond it, Ray writes to the disk."""
_TOLD = ("allocate memory", "out of memory", "size calculation overflowed")
"""Parts of PyTorch's messages when it gets no memory."""


@contextmanager
def within_memory(what: str, remedy: str, *, counted: bool = True) -> Iterator[None]:
    """Refuse what is built within the context if it takes more memory than is free.

    Args:
        what: What is built.
        remedy: What to do about it.
        counted: Whether new tensors stay, so that all of them together have to fit.

    Raises:
        ConfigError: If it takes too much.
    """
    free = unclaimed_memory()
    try:
        with _Allocations(free) if counted else nullcontext():
            yield
    except (MemoryError, RuntimeError) as error:
        text = described(error)
        if not isinstance(error, MemoryError) and not any(each in text for each in _TOLD):
            raise
        raise ConfigError(
            f"{what} exceeds the memory, of which {free / _GIB:.1f} GiB are free "
            f"({text.rstrip('.') or 'no more is available'}); {remedy}."
        ) from error


def check_round(phase: Phase, server: ServerState, config: ClusterConfig, clients: int) -> None:
    """Refuse a model whose round exceeds this machine's memory.

    Nothing is known of other machines.

    Raises:
        ConfigError: If it does.
    """
    free, actors = unclaimed_memory(), 0
    if config.backend == "ray":
        if config.join_address != "local":
            return
        room = int((os.cpu_count() or 1) / config.cpus_per_client)
        actors = min(config.num_actors or max(1, room), clients)
    needed = round_bytes(phase, server, actors, _STORE * free)
    if needed > free:
        where = f"the driver and {actors} actors" if actors else "this process"
        raise ConfigError(
            f"A round of this model takes {needed / _GIB:.1f} GiB or more in {where}, of which "
            f"{free / _GIB:.1f} are free; lower the sizes under method and encoder"
            f"{', or cluster.num_actors' if actors > 1 else ''}."
        )


def round_bytes(phase: Phase, server: ServerState, actors: int, store: float) -> float:
    """Return the least memory that a round takes with any method; training takes more.

    That is the model, its exact sum and its mean in the driver, a client's model, the sum and a
    contribution in each actor, and what they send each other.

    Args:
        phase: Says which slots go down and up.
        server: Has the slots.
        actors: Number of actors; 0 for one process.
        store: Bytes of the object store.
    """
    down, up = (
        [t for slot in sorted(slots) for t in server.slots.get(slot, {}).values()]
        for slots in (phase.down, phase.up)
    )
    model, means = (sum(t.nbytes for t in tensors) for tensors in (down, up))
    sums = _SUM * sum(t.numel() for t in up)
    sent = min(store, model + actors * sums) if actors else model
    return (1 + actors) * (model + sums + means) + sent


class _Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode that refuses new tensors once all of them would take more bytes than are free."""

    def __init__(self, free: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._free, self._taken = free, 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count the bytes of a factory function's result before it is made."""
        given = kwargs or {}
        if func.namespace == "aten" and args and _is_shape(args[0]):
            kind = given.get("dtype") or torch.get_default_dtype()
            self._taken += math.prod(args[0]) * kind.itemsize
            if self._taken > self._free:
                raise MemoryError(f"{self._taken / _GIB:,.1f} GiB are asked for")
        return func(*args, **given)


def _is_shape(value: Any) -> bool:
    return isinstance(value, Sequence) and bool(value) and all(type(n) is int for n in value)
