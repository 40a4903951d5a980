"""Runs clients' turns in one process, in an actor or without Ray, and sums their contributions."""

import logging
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

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
    Event,
    Handle,
    Order,
    Turn,
    TurnDone,
    TurnFailed,
    TurnStarted,
)
from coterie.execution.failure_trace import trace_of
from coterie.execution.messages import bytes_peer, bytes_up, check_outcome, items_peer
from coterie.execution.module_pool import ModulePool
from coterie.execution.packing import Packed, copied, pack, unpack
from coterie.execution.silo_data import SiloData
from coterie.execution.stacked_turns import StackedTurns
from coterie.execution.turn_client import TurnClient

_logger = logging.getLogger(__name__)

Resolve = Callable[[Handle], Packed]


class ClientTimeoutError(Exception):
    """A client's turn exceeds its time limit."""


def timeout_message(limit: float | None) -> str:
    """The failure message of a client that exceeds the time limit."""
    return f"took longer than faults.client_timeout_s={limit or math.inf:g}"


@dataclass
class Deadline:
    """The time limit of a turn, checked between training steps.

    Attributes:
        limit: Seconds that a turn may take, or None.
        stop: Called at every check; raises when the run is to stop.
    """

    limit: float | None
    stop: Callable[[], None]
    _until: float = float("inf")

    def begin(self) -> None:
        """Start the clock for a turn."""
        if self.limit is not None:
            self._until = time.monotonic() + self.limit

    def check(self) -> None:
        """Raise a ClientTimeoutError if the turn exceeds its limit."""
        self.stop()
        if self.limit is not None and time.monotonic() > self._until:
            raise ClientTimeoutError(timeout_message(self.limit))


class _Call(NamedTuple):
    """What a call's turns share: its order, phase and slots, and where contributions are summed."""

    number: int
    order: Order
    phase: Phase
    slots: Slots
    sums: Sums


@dataclass(kw_only=True)
class Worker:
    """One process's share of a phase.

    Attributes:
        method: The method; its client half runs here.
        pipeline: The aggregation, of which a part happens here.
        samples: "train" and, where there are any, "test" samples; empty where data is siloed.
        parts: Client to its rows of the training samples.
        labels: The training samples' classes; None unless the method is supervised.
        trainer: Trains on a client's data.
        pool: Modules kept between turns.
        device: Where samples are embedded; the trainer uses the same.
        deadline: The time limit of a turn; the trainer checks it too.
        resolve: Reads the tensors behind a handle.
        silo_data: The data of siloed clients, or None.
        stacked: Runs turns whose clients are trained together; None for one after the other.
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
    silo_data: SiloData | None = None
    stacked: StackedTurns | None = None

    def run(self, order: Order, call: int) -> Iterator[Event]:
        """Run the order's turns one after the other; the last event carries their sums."""
        slots = {name: unpack(self.resolve(handle)) for name, handle in order.slots.items()}
        sums = self.pipeline.open(order.key, call, order.layouts, order.stages)
        take = partial(self._turn, _Call(call, order, read_only(order.phase), slots, sums))
        if self.stacked is None:
            for turn in order.turns:
                if self.deadline.limit is not None:
                    yield TurnStarted(call=call, client=turn.client)
                yield take(turn, self.trainer, self.pool)
        else:
            yield from self.stacked.run(order.turns, take)
        yield CallDone(call=call, lanes=sums.lanes, device=device_name(self.device))

    def _turn(self, of: _Call, turn: Turn, trainer: LocalTrainer, pool: ModulePool) -> Event:
        started = time.perf_counter()
        stages = ClientStages()
        self.deadline.begin()
        engines = True  # whether an error now is the engine's own: a client raises what it likes
        try:
            stages, mail = self._stages(of, turn), self._mail(turn)
            engines = False
            client = self._client(turn, stages, mail, trainer, pool)
            offered = {slot: copied(of.slots[slot]) for slot in of.phase.down}
            outcome = self.method.client(client, of.phase, offered)
            self.deadline.check()
            outcome = check_outcome(
                of.order.phase,
                outcome,
                of.order.layouts,
                self._recipients(of.order, turn),
                samples=turn.size,
            )
            sent = stages.contribute(outcome)
            done = _turn_done(of.number, turn.client, sent, time.perf_counter() - started)
            engines = True
            of.sums.add(turn.client, sent.up)  # last, so that a client that fails adds nothing
        except BaseException as error:  # one client stops no other, also not by sys.exit
            if engines and isinstance(error, StateLostError | SumsExceededError):
                raise
            self.deadline.stop()  # raises if the run is to stop, which is no client's failure
            _logger.debug("Client %d failed", turn.client, exc_info=True)
            refused = isinstance(error, ConfigError)
            message = described(error) if refused else _failure_message(error)
            trace = "" if refused else trace_of(error, private=stages.hides)
            return TurnFailed(
                call=of.number, client=turn.client, message=message, refused=refused, trace=trace
            )
        return done

    def _stages(self, of: _Call, turn: Turn) -> ClientStages:
        """The aggregation's stages for a turn, and what the client has kept."""
        task = StageTask(
            phase=of.order.phase,
            client=turn.client,
            samples=turn.size,
            seed=turn.seed,
            received=of.slots,
            layouts=of.order.layouts,
        )
        state = None if turn.state is None else self._read(turn, turn.state)
        return self.pipeline.for_client(task, of.order.stages, turn.stages, state)

    def _recipients(self, order: Order, turn: Turn) -> Collection[int]:
        """The clients that a client may send mail to."""
        named = order.phase.recipients
        return range(len(self.parts)) if named is None else named.get(turn.client, frozenset())

    def _mail(self, turn: Turn) -> dict[int, Tensors]:
        """Copies of the client's mail, for the client to write into."""
        return {sender: self._read(turn, turn.mail[sender]) for sender in sorted(turn.mail)}

    def _client(
        self,
        turn: Turn,
        stages: ClientStages,
        mail: Mapping[int, Tensors],
        trainer: LocalTrainer,
        pool: ModulePool,
    ) -> TurnClient:
        return TurnClient(
            id=turn.client,
            data=self._data(turn.client).read_only(),
            state=stages.state,
            mail=mail,
            seed=turn.seed,
            needs_labels=self.method.needs_labels,
            trainer=trainer,
            pool=pool,
            device=self.device,
            work=turn.work,
            stages=stages,
        )

    def _data(self, client: int) -> ClientData:
        if self.silo_data is not None:
            return self.silo_data.client_data(client, with_labels=self.method.needs_labels)
        rows = self.parts[client]
        return ClientData(samples=self.samples["train"], rows=rows, labels=self.labels)

    def _read(self, turn: Turn, handle: Handle) -> Tensors:
        try:
            return copied(unpack(self.resolve(handle)))
        except StateLostError as error:
            raise StateLostError(turn.client) from error


def _turn_done(call: int, client: int, sent: Contribution, seconds: float) -> TurnDone:
    outcome = sent.outcome
    return TurnDone(
        call=call,
        client=client,
        records=pack(outcome.records),
        metrics=outcome.metrics,
        bytes_up={**bytes_up(outcome), **sent.bytes_up},
        bytes_peer=bytes_peer(outcome),
        items_peer=items_peer(outcome),
        seconds=seconds,
        state=None if outcome.state is None else pack(outcome.state),
        mail={recipient: pack(message) for recipient, message in outcome.mail.items()},
        note=printable(outcome.note),
        smallest={**smallest_sent(outcome), **sent.smallest},
        updates={slot: pack(sent.whole[slot]) for slot in sorted(sent.whole)},
    )


def _failure_message(error: BaseException) -> str:
    kind, text = type(error).__name__, described(error)
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in text:
        return (
            f"out of memory: {text.rstrip('.') or kind}; lower method.batch_size or give each "
            "client more"
        )
    return printable(f"{kind}: {text or 'no message'}")
