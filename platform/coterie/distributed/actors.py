"""The actor in which clients run, and the one that runs a method's server half."""

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import ray
import torch
from ray.exceptions import ObjectLostError

from coterie.contract.clusterer import Prediction
from coterie.contract.phase import Mean, Phase
from coterie.errors import ContractError, StateLostError
from coterie.execution.backend import Workload
from coterie.execution.build import build_method, build_predictor, build_worker
from coterie.execution.device import check_device
from coterie.execution.events import CallDone, Event, Handle, Order, TurnDone, TurnStarted
from coterie.execution.packing import Packed, PackedServer, pack_server, unpack, unpack_server
from coterie.execution.predictor import Chunk
from coterie.execution.silo_data import SiloData, Tally

FLUSH_S = 0.25
"""Reports are sent at most this often."""

ObjectKey = tuple[int, int | str | None]
"""(client, recipient) of a message, (client, slot) of an update, (client, None) of a state."""


@dataclass(frozen=True)
class Report:
    """Events of some turns. Behind it in the stream come the objects that it lists."""

    events: tuple[Event, ...]
    objects: tuple[ObjectKey, ...]


@dataclass(frozen=True, kw_only=True)
class StoredWorkload:
    """A workload whose arrays lie in the object store, once per node."""

    workload: Workload
    samples: Mapping[str, Any]
    labels: Any | None

    def load(self) -> Workload:
        """The workload with views of the arrays, which are not copied."""
        samples = {split: ray.get(ref) for split, ref in self.samples.items()}
        labels = None if self.labels is None else ray.get(self.labels)
        return replace(self.workload, samples=samples, labels=labels)


class ClientActor:
    """Hosts clients on its CPU or GPU slice, one after the other.

    Args:
        stored: What to run.
        memory_fraction: Cap on this process's share of its GPU's memory, or None.
        clients: Those whose data lies here and is read now, where data stays with its clients.

    Raises:
        DataError: If their data is missing or unreadable.
    """

    def __init__(
        self, stored: StoredWorkload, memory_fraction: float | None, clients: tuple[int, ...] = ()
    ) -> None:
        if memory_fraction is not None and torch.cuda.is_available():
            torch.cuda.set_per_process_memory_fraction(memory_fraction)
        workload = stored.load()
        self._worker = build_worker(workload, stop=_never, resolve=_resolve)
        self._predictor = build_predictor(self._worker, workload, stop=_never)
        for client in clients:
            self._local.arrays(client)
        self._accelerator = workload.config.accelerator
        warm_up()

    @property
    def _local(self) -> SiloData:
        if self._worker.silo_data is None:
            raise ContractError("tally: the data is not siloed; use predict.")
        return self._worker.silo_data

    def tally(self, server: PackedServer, key: str, client: int) -> Tally:
        """A client's own counts of clusters and classes."""
        return self._local.tally(self._predictor, unpack_server(server), key, client)

    def ready(self) -> int:
        """The id of the actor's process, once it is set up.

        Raises:
            ConfigError: If it lacks the device that the config asks for.
        """
        check_device(self._accelerator, self._worker.device)
        return os.getpid()

    def execute(self, order: Order, call: int) -> Iterator[Report | Packed]:
        """Stream the order's turns: reports, each followed by its states and mail; sums last.

        The end of the call is a report of its own, behind all objects: a driver that has it has
        them too, whenever this process dies.
        """
        events: list[Event] = []
        objects: list[tuple[ObjectKey, Packed]] = []
        flushed = time.monotonic()
        for event in self._worker.run(order, call):
            last = isinstance(event, CallDone)
            if not last:
                light, heavy = _split(event)
                events.append(light)
                objects += heavy
            at_once = last or isinstance(event, TurnStarted)
            if events and (at_once or time.monotonic() - flushed >= FLUSH_S):
                yield Report(tuple(events), tuple(key for key, _ in objects))
                for _, packed in objects:
                    yield packed
                events, objects, flushed = [], [], time.monotonic()
            if last:
                yield Report((event,), ())

    def predict(self, server: PackedServer, key: str, chunk: Chunk) -> Prediction:
        """Embedding and probabilities of a chunk's samples."""
        return self._predictor.predict(unpack_server(server), key, chunk)


class ServerActor:
    """Runs the method's server half on the cluster, with a slice like a client's."""

    def __init__(self, stored: StoredWorkload) -> None:
        workload = stored.load()
        torch.set_num_threads(workload.config.cluster.threads_per_client)
        self._method = build_method(workload)

    def serve(
        self,
        server: PackedServer,
        phase: Phase,
        means: Mapping[str, tuple[int, Packed]],
        records: Mapping[int, Packed],
    ) -> PackedServer:
        """See `Method.server`; tensors come and go packed."""
        weighted = {slot: Mean(weight=w, tensors=unpack(p)) for slot, (w, p) in means.items()}
        gathered = {client: unpack(packed) for client, packed in records.items()}
        state = unpack_server(server)
        return pack_server(self._method.server(state, phase, weighted, gathered))


def warm_up() -> None:
    """Bring in what the first optimiser of a process imports, about a second's worth."""
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


def _split(event: Event) -> tuple[Event, list[tuple[ObjectKey, Packed]]]:
    """An event without its heavy parts, and those parts: they go to the store, not the driver."""
    if not isinstance(event, TurnDone):
        return event, []
    heavy: list[tuple[ObjectKey, Packed]] = []
    if event.state is not None:
        heavy.append(((event.client, None), event.state))
    heavy += [((event.client, recipient), event.mail[recipient]) for recipient in event.mail]
    heavy += [((event.client, slot), event.updates[slot]) for slot in event.updates]
    return replace(event, state=None, mail={}, updates={}), heavy


def _resolve(handle: Handle) -> Packed:
    try:
        packed: Packed = ray.get(handle)  # a view of the node's shared memory
    except ObjectLostError as error:
        raise StateLostError from error
    return packed


def _never() -> None:
    """An actor is not asked to stop: the driver ends it."""
