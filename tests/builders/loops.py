"""Runs a method on the serial backend, without data set, run directory or evaluation."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from coterie.config.component import Component
from coterie.config.partition import PartitionConfig
from coterie.config.schema import ClusterConfig, RunConfig
from coterie.contract.method import Task
from coterie.execution.backend import Workload
from coterie.execution.packing import Packed, pack
from coterie.execution.serial import SerialBackend
from coterie.rounds.loop import Committed, Loop
from coterie.rounds.state import RunState
from tests.builders.observers import Quiet


def make_workload(method: Component, sizes: Sequence[int] = (2, 3, 4), **config: Any) -> Workload:
    """A workload of random feature vectors, `sizes[c]` of them for client c."""
    ends = np.cumsum(sizes)
    samples = np.random.default_rng(0).normal(size=(int(ends[-1]), 2)).astype(np.float32)
    anything = ClusterConfig()  # these methods use no data set, partition, encoder or augmentation
    return Workload(
        config=RunConfig(
            method=method,
            data=anything,
            partition=PartitionConfig(),
            encoder=anything,
            augmentation=anything,
            cluster=ClusterConfig(backend="serial"),
            accelerator="cpu",
            **config,
        ),
        task=Task(shape=(2,), classes=0, encoder=anything, augmentation=anything),
        samples={"train": samples},
        parts=[np.arange(e - s, e) for s, e in zip(sizes, ends, strict=True)],
        labels=None,
    )


def make_loop(
    workload: Workload, commit: Callable[[RunState, Committed], None] = lambda s, c: None
) -> Loop:
    """A loop on a serial backend of its own."""
    backend = SerialBackend(workload, lambda: None)
    method = backend.worker.method
    return Loop(method, backend, workload, Quiet(), commit)


def start(loop: Loop) -> RunState:
    """The state before the first phase."""
    sizes = {client: len(rows) for client, rows in enumerate(loop.workload.parts)}
    return RunState(server=loop.method.init(sizes, 0))


def run(workload: Workload) -> tuple[RunState, list[Committed]]:
    """Run to the end; the last state and every phase."""
    done: list[Committed] = []
    loop = make_loop(workload, lambda state, committed: done.append(committed))
    state = start(loop)
    loop.run(state)
    return state, done


def plain(state: RunState) -> dict[str, Any]:
    """All of a run's state as what `==` compares to the bit."""

    def bits(packed: Packed) -> tuple[Any, bytes]:
        return packed.fields, packed.buffer.tobytes()

    return {
        "server": (state.server.round, state.server.step, dict(state.server.metadata)),
        "slots": {slot: bits(pack(tensors)) for slot, tensors in state.server.slots.items()},
        "states": {client: bits(kept) for client, kept in sorted(state.states.items())},
        "peer_messages": {
            to: {by: bits(m) for by, m in sorted(messages.items())}
            for to, messages in sorted(state.peer_messages.items())
        },
        "ledger": (
            state.ledger.down,
            state.ledger.up,
            state.ledger.peer,
            state.ledger.versions,
        ),
        "rest": (state.phases, state.failures, state.dropped),
    }
