"""The Ray actor that runs clients."""

import os
import resource
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import ray
import torch
from ray.exceptions import ObjectLostError, RayActorError

from coterie.config.component import give_classes, load_target
from coterie.config.loading import dump_config
from coterie.config.trust import targets_in
from coterie.contract.clusterer import Prediction
from coterie.distributed.handles import Stored
from coterie.errors import ContractError, StateLostError
from coterie.execution.backend import Workload
from coterie.execution.build import build_predictor, build_worker, warm_up
from coterie.execution.device import check_device
from coterie.execution.events import (
    CallDone,
    ClientResult,
    ClientStarted,
    Event,
    Handle,
    PhaseRequest,
)
from coterie.execution.node_local_data import NodeLocalData, Tally
from coterie.execution.packing import Packed, PackedServer, unpack_server
from coterie.execution.predictor import Chunk
from coterie.execution.settings import apply_settings, numeric_settings

FLUSH_S = 0.25
"""Shortest time between two reports."""

_CAPPED = 0.95
"""Part of an actor's share of a GPU's memory that tensors may take; CUDA itself takes the rest."""

_FILES = 0.9
"""Part of the files that a process may open, above which it has too few left."""

ObjectKey = tuple[int, int | str | None]
"""(client, recipient) of a message, (client, slot) of an update, (client, None) of a state."""


@dataclass(frozen=True)
class Report:
    """Events of tasks; the objects that they refer to follow in the stream."""

    events: tuple[Event, ...]
    objects: tuple[ObjectKey, ...]


@dataclass(frozen=True, kw_only=True)
class StoredWorkload:
    """A workload whose arrays are in the object store, once per node.

    Attributes:
        workload: The rest of it.
        samples: References to its arrays of samples.
        classes: The classes that the config names of the program itself, which no other process
            can import.
        settings: The driver's settings by which numbers are computed.
    """

    workload: Workload
    samples: Mapping[str, Any]
    labels: Any | None
    classes: Mapping[str, Any]
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, workload: Workload) -> "StoredWorkload":
        """Put a workload's arrays into the object store."""
        named = (target for _, target in targets_in(dump_config(workload.config)))
        return cls(
            workload=replace(workload, samples={}, labels=None),
            samples={split: ray.put(array) for split, array in workload.samples.items()},
            labels=None if workload.labels is None else ray.put(workload.labels),
            classes={name: load_target(name) for name in named if name.startswith("__main__:")},
            settings=numeric_settings(),
        )

    def load(self) -> Workload:
        """Apply the settings, and return the workload with views of the stored arrays."""
        give_classes(self.classes)
        apply_settings(self.settings)
        samples = {split: ray.get(ref) for split, ref in self.samples.items()}
        labels = None if self.labels is None else ray.get(self.labels)
        return replace(self.workload, samples=samples, labels=labels)


class ClientActor:
    """Ray actor that runs clients on its share of CPUs and GPUs, one after the other.

    Args:
        memory_fraction: Share of the GPU's memory that this process stays below, or None.
        clients: The clients of this node, whose data is read now.

    Raises:
        DataError: If a node-local client's data is missing or unreadable.
    """

    def __init__(
        self, stored: StoredWorkload, memory_fraction: float | None, clients: tuple[int, ...] = ()
    ) -> None:
        if memory_fraction is not None and torch.cuda.is_available():
            torch.cuda.set_per_process_memory_fraction(_CAPPED * memory_fraction)
        workload = stored.load()
        self.worker = build_worker(workload, stop=_never, resolve=_resolve)
        self._predictor = build_predictor(self.worker, workload, stop=_never)
        for client in clients:
            self._local.arrays(client)
        self._accelerator = workload.config.accelerator
        warm_up()

    @property
    def _local(self) -> NodeLocalData:
        if self.worker.node_local_data is None:
            raise ContractError("tally: the data is not node-local; use predict.")
        return self.worker.node_local_data

    def tally(self, server: PackedServer, key: str, client: int) -> Tally:
        """Count clusters and classes in a client's node-local data."""
        return self._local.tally(self._predictor, unpack_server(server), key, client)

    def ready(self) -> int:
        """Return the id of the actor's process, once the actor is set up.

        Raises:
            ConfigError: If it lacks the device that the config asks for.
        """
        check_device(self._accelerator, self.worker.device)
        return os.getpid()

    def execute(self, request: PhaseRequest, call: int) -> Iterator[Report | Packed]:
        """Run the request's tasks and stream reports, each followed by its objects; the sums last.

        The last report stands alone behind all objects: a driver that has received it has all of
        them, even if this process dies.
        """
        events: list[Event] = []
        objects: list[tuple[ObjectKey, Packed]] = []
        flushed = time.monotonic()
        for event in self.worker.run(request, call):
            _check_files()
            last = isinstance(event, CallDone)
            if not last:
                light, heavy = _split(event)
                events.append(light)
                objects += heavy
            at_once = last or isinstance(event, ClientStarted)
            if events and (at_once or time.monotonic() - flushed >= FLUSH_S):
                yield Report(tuple(events), tuple(key for key, _ in objects))
                for _, packed in objects:
                    yield packed
                events, objects, flushed = [], [], time.monotonic()
            if last:
                yield Report((event,), ())

    def exchange(self, stage: str, call: int, question: str, message: Any) -> Any:
        """Ask a stage of the aggregation about a call that ran here."""
        return self.worker.pipeline.answer(stage, call, question, message)

    def predict(self, server: PackedServer, key: str, chunk: Chunk) -> Prediction:
        """Predict a chunk's embeddings and probabilities."""
        return self._predictor.predict(unpack_server(server), key, chunk)


def _split(event: Event) -> tuple[Event, list[tuple[ObjectKey, Packed]]]:
    """Separate an event from its tensors, which go to the object store and not to the driver."""
    if not isinstance(event, ClientResult):
        return event, []
    heavy: list[tuple[ObjectKey, Packed]] = []
    if event.state is not None:
        heavy.append(((event.client, None), event.state))
    heavy += [
        ((event.client, recipient), event.peer_messages[recipient])
        for recipient in event.peer_messages
    ]
    heavy += [((event.client, slot), event.updates[slot]) for slot in event.updates]
    return replace(event, state=None, peer_messages={}, updates={}), heavy


def _check_files() -> None:
    """End this process if clients' code has left open nearly as many files as are allowed.

    Ray would wait for ever for what it cannot open; another process runs the tasks again.
    """
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    with suppress(OSError):
        lowest = os.open(os.devnull, os.O_RDONLY)
        os.close(lowest)
        if lowest < _FILES * most:
            return
    os._exit(1)


def _resolve(handle: Handle) -> Packed:
    stored: Stored = handle
    try:
        packed: Packed = ray.get(stored.reference)  # a view of the node's shared memory
    except (ObjectLostError, RayActorError) as error:  # Ray raises either for a lost object
        raise StateLostError from error
    return packed


def _never() -> None:
    """Return without stopping: the driver kills an actor that has to stop."""
