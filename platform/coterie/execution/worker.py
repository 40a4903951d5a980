"""Runs clients' tasks in one process, in an actor or without Ray, and sums their contributions."""

import logging
import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.aggregation.audit import smallest_sent
from coterie.aggregation.exact import SumsExceededError
from coterie.aggregation.pipeline import ClientStages, Pipeline
from coterie.aggregation.stage import Contribution, StageTask, Sums
from coterie.contract.client import ClientData, LocalTrainer
from coterie.contract.data import Indices, Samples
from coterie.contract.method import Method
from coterie.contract.phase import Phase, Slots, Tensors, read_only
from coterie.errors import ConfigError, StateLostError, described, printable
from coterie.execution.device import device_name
from coterie.execution.events import (
    CallDone,
    ClientFailed,
    ClientResult,
    ClientStarted,
    ClientTask,
    Event,
    Handle,
    PhaseRequest,
)
from coterie.execution.failure_trace import trace_of
from coterie.execution.messages import bytes_peer, bytes_up, check_outcome, items_peer
from coterie.execution.module_pool import ModulePool
from coterie.execution.node_local_data import NodeLocalData
from coterie.execution.packing import Packed, copied, pack, unpack
from coterie.execution.settings import all_settings, apply_settings
from coterie.execution.task_client import TaskClient
from coterie.execution.vmap_tasks import VmapTasks

_logger = logging.getLogger(__name__)

_UNTOLD = "an error without a readable message"

Resolve = Callable[[Handle], Packed]


class ClientTimeoutError(Exception):
    """A client's task exceeds its time limit."""


def timeout_message(limit: float | None) -> str:
    """Return the failure message of a client that exceeds the time limit."""
    return f"took longer than faults.client_timeout_s={limit or math.inf:g}"


@dataclass
class Deadline:
    """The time limit of a task, checked between training steps.

    Attributes:
        limit: Seconds that a task may take, or None.
        stop: Called at every check; raises when the run is to stop.
    """

    limit: float | None
    stop: Callable[[], None]
    _until: float = float("inf")

    def begin(self) -> None:
        """Start the clock for a task."""
        if self.limit is not None:
            self._until = time.monotonic() + self.limit

    def check(self) -> None:
        """Raise a ClientTimeoutError if the task exceeds its limit."""
        self.stop()
        if self.limit is not None and time.monotonic() > self._until:
            raise ClientTimeoutError(timeout_message(self.limit))


class _Call(NamedTuple):
    """What the tasks of a call share: request, phase, slots, sums, and the process's settings."""

    number: int
    request: PhaseRequest
    phase: Phase
    slots: Slots
    sums: Sums
    settings: Mapping[str, Any]


@dataclass(kw_only=True)
class Worker:
    """The part of a phase that one process runs.

    Attributes:
        pipeline: The aggregation, of which a part happens here.
        samples: "train" and, where there are any, "test" samples; empty where data is node-local.
        parts: Client to its rows of the training samples.
        labels: The training samples' classes; None unless the method is supervised.
        pool: Modules kept between tasks.
        device: Where samples are embedded; the trainer uses the same.
        deadline: The time limit of a task; the trainer checks it too.
        resolve: Reads the tensors behind a handle.
        node_local_data: The data of node-local clients, or None.
        vmapped: Runs tasks whose clients are trained together; None for one after the other.
    """

    method: Method
    pipeline: Pipeline
    samples: Mapping[str, Samples]
    parts: Sequence[Indices]
    labels: NDArray[np.int64] | None
    trainer: LocalTrainer
    pool: ModulePool
    device: torch.device
    deadline: Deadline
    resolve: Resolve = field(default=lambda handle: handle)
    node_local_data: NodeLocalData | None = None
    vmapped: VmapTasks | None = None

    def run(self, request: PhaseRequest, call: int) -> Iterator[Event]:
        """Run the request's tasks one after the other; the last event carries their sums."""
        slots = {name: unpack(self.resolve(handle)) for name, handle in request.slots.items()}
        sums = self.pipeline.open(request.key, call, request.layouts, request.stages)
        phase, settings = read_only(request.phase), all_settings()
        take = partial(self._task, _Call(call, request, phase, slots, sums, settings))
        if self.vmapped is None:
            for task in request.tasks:
                if self.deadline.limit is not None:
                    yield ClientStarted(call=call, client=task.client)
                yield take(task, self.trainer, self.pool)
        else:
            yield from self.vmapped.run(request.tasks, take)
        yield CallDone(call=call, sums=sums.sums, device=device_name(self.device))

    def _task(self, of: _Call, task: ClientTask, trainer: LocalTrainer, pool: ModulePool) -> Event:
        started, process = time.perf_counter(), os.getpid()
        stages = ClientStages()
        self.deadline.begin()
        engines = True  # whether an error now is the engine's own: a client raises what it likes
        try:
            stages, peer_messages = self._stages(of, task), self._peer_messages(task)
            engines = False
            client = self._client(task, stages, peer_messages, trainer, pool)
            offered = {slot: copied(of.slots[slot]) for slot in of.phase.down}
            outcome = self.method.client(client, of.phase, offered)
            self.deadline.check()
            outcome = check_outcome(
                of.request.phase,
                outcome,
                of.request.layouts,
                self._recipients(of.request, task),
                samples=task.size,
            )
            sent = stages.contribute(outcome)
            done = _task_done(of.number, task.client, sent, time.perf_counter() - started)
            engines = True
            of.sums.add(task.client, sent.up)  # last, so that a client that fails adds nothing
        except BaseException as error:  # no client stops another, not even by sys.exit
            if engines and isinstance(error, StateLostError | SumsExceededError):
                raise
            self.deadline.stop()  # raises if the run is to stop, which is not a failure of a client
            _logger.debug("Client %d failed", task.client, exc_info=True)
            return _task_failed(of.number, task.client, error, private=stages.hides)
        finally:
            if os.getpid() != process:  # what a client has forked does not go on with the run
                os._exit(1)
            apply_settings(of.settings)
        return done

    def _stages(self, of: _Call, client_task: ClientTask) -> ClientStages:
        """Return the aggregation's stages for a task, and what the client has kept."""
        task = StageTask(
            phase=of.request.phase,
            client=client_task.client,
            samples=client_task.size,
            seed=client_task.seed,
            received=of.slots,
            layouts=of.request.layouts,
        )
        state = None if client_task.state is None else self._read(client_task, client_task.state)
        return self.pipeline.for_client(task, of.request.stages, client_task.stages, state)

    def _recipients(self, request: PhaseRequest, task: ClientTask) -> Collection[int]:
        """Return the clients that a client may send messages to."""
        named = request.phase.recipients
        return range(len(self.parts)) if named is None else named.get(task.client, frozenset())

    def _peer_messages(self, task: ClientTask) -> dict[int, Tensors]:
        """Return copies of the client's peer messages, which the client may change."""
        return {
            sender: self._read(task, task.peer_messages[sender])
            for sender in sorted(task.peer_messages)
        }

    def _client(
        self,
        task: ClientTask,
        stages: ClientStages,
        peer_messages: Mapping[int, Tensors],
        trainer: LocalTrainer,
        pool: ModulePool,
    ) -> TaskClient:
        return TaskClient(
            id=task.client,
            data=self._data(task.client).read_only(),
            state=stages.state,
            peer_messages=peer_messages,
            seed=task.seed,
            needs_labels=self.method.needs_labels,
            trainer=trainer,
            pool=pool,
            device=self.device,
            work=task.work,
            stages=stages,
        )

    def _data(self, client: int) -> ClientData:
        if self.node_local_data is not None:
            return self.node_local_data.client_data(client, with_labels=self.method.needs_labels)
        rows = self.parts[client]
        return ClientData(samples=self.samples["train"], rows=rows, labels=self.labels)

    def _read(self, task: ClientTask, handle: Handle) -> Tensors:
        try:
            return copied(unpack(self.resolve(handle)))
        except StateLostError as error:
            raise StateLostError(task.client) from error


def _task_done(call: int, client: int, sent: Contribution, seconds: float) -> ClientResult:
    outcome = sent.outcome
    return ClientResult(
        call=call,
        client=client,
        gathered=pack(outcome.gathered),
        metrics=outcome.metrics,
        bytes_up={**bytes_up(outcome), **sent.bytes_up},
        bytes_peer=bytes_peer(outcome),
        items_peer=items_peer(outcome),
        seconds=seconds,
        state=None if outcome.state is None else pack(outcome.state),
        peer_messages={
            recipient: pack(message) for recipient, message in outcome.peer_messages.items()
        },
        note=printable(outcome.note),
        smallest={**smallest_sent(outcome), **sent.smallest},
        updates={slot: pack(sent.whole[slot]) for slot in sorted(sent.whole)},
    )


def _task_failed(call: int, client: int, error: BaseException, *, private: bool) -> ClientFailed:
    refused, message, trace = False, _UNTOLD, ""
    with suppress(BaseException):  # the error's class is the client's code
        refused = isinstance(error, ConfigError)
        message = described(error) if refused else _failure_message(error)
        trace = "" if refused else trace_of(error, private=private)
    return ClientFailed(call=call, client=client, message=message, refused=refused, trace=trace)


def _failure_message(error: BaseException) -> str:
    kind, text = type(error).__name__, described(error)
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in text:
        return (
            f"out of memory: {text.rstrip('.') or kind}; lower method.batch_size or give each "
            "client more"
        )
    return printable(f"{kind}: {text or 'no message'}")
