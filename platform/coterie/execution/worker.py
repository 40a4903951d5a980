"""Runs clients' turns in one process and folds what they send, in an actor or without Ray."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from lightning import LightningModule
from numpy.typing import NDArray
from torch import Tensor, nn

from coterie.contract.client import ClientData, Fit, LocalTrainer, ModuleT, Plan
from coterie.contract.data import Indices, Samples
from coterie.contract.method import Method
from coterie.contract.phase import Outcome, Slots, Tensors
from coterie.contract.seeds import derive_seed
from coterie.errors import ConfigError, InterruptedRunError, RunError, StateLostError
from coterie.execution.batches import SeededBatches
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
from coterie.execution.exact import ExactMeans
from coterie.execution.messages import bytes_peer, bytes_up, check_outcome, items_peer
from coterie.execution.module_pool import ModulePool
from coterie.execution.packing import Packed, pack, unpack
from coterie.execution.predictor import embed
from coterie.execution.robust import sent_whole, summed
from coterie.execution.silo_data import LocalData


class ClientTimeoutError(Exception):
    """A client's turn takes too long."""


def timeout_message(limit: float) -> str:
    """Why a client that takes too long has failed."""
    return f"took longer than faults.client_timeout_s={limit:g}"


@dataclass
class Deadline:
    """Raises between the steps of training when a turn takes too long or the run is to stop.

    Attributes:
        limit: Seconds a turn may take, or None.
        stop: Called at every check; raises when the run is to stop.
    """

    limit: float | None
    stop: Callable[[], None]
    _until: float = float("inf")

    def begin(self) -> None:
        """A turn begins."""
        if self.limit is not None:
            self._until = time.monotonic() + self.limit

    def check(self) -> None:
        """Raise a ClientTimeoutError if the turn has taken too long."""
        self.stop()
        if self.limit is not None and time.monotonic() > self._until:
            raise ClientTimeoutError(timeout_message(self.limit))


_logger = logging.getLogger(__name__)

Resolve = Callable[[Handle], Packed]


@dataclass(frozen=True, kw_only=True)
class TurnClient:
    """The `Client` that a method sees; see the contract for its attributes."""

    id: int
    data: ClientData
    state: Tensors | None
    mail: Mapping[int, Tensors]
    seed: int
    needs_labels: bool
    trainer: LocalTrainer
    pool: ModulePool
    device: torch.device
    work: float = 1.0

    def module(self, kind: str, build: Callable[[], ModuleT]) -> ModuleT:
        """The model in its initial state."""
        return self.pool.fresh(kind, build)

    def fit(self, module: LightningModule, plan: Plan, data: ClientData | None = None) -> Fit:
        """Train the module in place, by default on the client's own data."""
        data = self.data if data is None else data
        seed = self.seed if plan.seed is None else plan.seed
        batches = SeededBatches(data, plan, seed, with_labels=self.needs_labels, work=self.work)
        # What a network draws itself must not repeat where training goes on from an earlier turn.
        own = seed if plan.seed is None else derive_seed(seed, "turn", plan.first_step)
        return self.trainer.fit(module, batches, own)

    def embed(self, network: nn.Module, samples: Tensor | None = None) -> Tensor:
        """The network's outputs for samples, by default its own, in their order, on the CPU."""
        return embed(network, self.data if samples is None else samples, self.device)


@dataclass(kw_only=True)
class Worker:
    """One process's share of a phase.

    Attributes:
        method: The method, whose client half runs here.
        samples: "train" and, where there are any, "test" samples of the data set, viewed.
        parts: Client to its rows of the training samples.
        labels: Their classes, only if the method is supervised.
        trainer: What trains locally.
        pool: Models kept between turns.
        device: Where samples are embedded; the trainer has one of its own, the same.
        deadline: The time limit of a turn, which the trainer checks too.
        resolve: Turns a handle into what it refers to.
        local: The clients' own data, where it stays with them; `samples` is empty then.
    """

    method: Method
    samples: Mapping[str, Samples]
    parts: Sequence[Indices]
    labels: NDArray[np.int64] | None
    trainer: LocalTrainer
    pool: ModulePool
    device: torch.device
    deadline: Deadline
    resolve: Resolve = field(default=lambda handle: handle)
    local: LocalData | None = None

    def run(self, order: Order, call: int) -> Iterator[Event]:
        """Run the order's turns one by one; its sums come last."""
        slots = {name: unpack(self.resolve(handle)) for name, handle in order.slots.items()}
        means = ExactMeans(dict(order.layouts))
        for turn in order.turns:
            if self.deadline.limit is not None:
                yield TurnStarted(call=call, client=turn.client)
            yield self._turn(order, slots, turn, means, call)
        yield CallDone(call=call, lanes=means.lanes)

    def _turn(self, order: Order, slots: Slots, turn: Turn, means: ExactMeans, call: int) -> Event:
        started = time.perf_counter()
        self.deadline.begin()
        try:
            outcome = self.method.client(self._client(turn), order.phase, slots)
            self.deadline.check()
            check_outcome(order.phase, outcome, order.layouts, range(len(self.parts)))
            done = _done(call, turn.client, outcome, time.perf_counter() - started)
            done = replace(done, updates=sent_whole(order.rule, outcome.up))
            # Last: a client that fails leaves nothing in the sums.
            means.add(summed(order.rule, outcome.up))
        except (InterruptedRunError, ConfigError, RunError):
            raise
        except Exception as error:  # whatever a client does, the others go on
            _logger.debug("Client %d failed", turn.client, exc_info=True)
            return TurnFailed(call=call, client=turn.client, message=_sentence(error))
        return done

    def _client(self, turn: Turn) -> TurnClient:
        return TurnClient(
            id=turn.client,
            data=self._data(turn.client),
            state=None if turn.state is None else self._read(turn, turn.state),
            mail={sender: self._read(turn, turn.mail[sender]) for sender in sorted(turn.mail)},
            seed=turn.seed,
            needs_labels=self.method.needs_labels,
            trainer=self.trainer,
            pool=self.pool,
            device=self.device,
            work=turn.work,
        )

    def _data(self, client: int) -> ClientData:
        if self.local is not None:
            return self.local.client_data(client, with_labels=self.method.needs_labels)
        rows = self.parts[client]
        return ClientData(samples=self.samples["train"], rows=rows, labels=self.labels)

    def _read(self, turn: Turn, handle: Handle) -> Tensors:
        try:
            return unpack(self.resolve(handle))
        except StateLostError as error:
            raise StateLostError(turn.client) from error


def _done(call: int, client: int, outcome: Outcome, seconds: float) -> TurnDone:
    return TurnDone(
        call=call,
        client=client,
        records=pack(outcome.records),
        metrics=dict(outcome.metrics),
        bytes_up=bytes_up(outcome),
        bytes_peer=bytes_peer(outcome),
        items_peer=items_peer(outcome),
        seconds=seconds,
        state=None if outcome.state is None else pack(outcome.state),
        mail={recipient: pack(message) for recipient, message in outcome.mail.items()},
    )


def _sentence(error: Exception) -> str:
    first = str(error).strip().splitlines()
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error):
        return (
            f"out of memory: {first[0].rstrip('.') if first else type(error).__name__}; lower "
            "method.batch_size or give each client more"
        )
    return f"{type(error).__name__}: {first[0] if first else 'no message'}"
