"""Runs clients' turns in one process and folds what they send, in an actor or without Ray."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
import torch
from lightning import LightningModule
from numpy.typing import NDArray
from torch import Tensor, nn

from coterie.contract.client import ClientData, Fit, LocalTrainer, ModuleT, Plan
from coterie.contract.data import Indices
from coterie.contract.method import Method
from coterie.contract.phase import Outcome, Slots, Tensors
from coterie.contract.seeds import derive_seed, seeded
from coterie.engine.batches import SeededBatches
from coterie.engine.deadline import Deadline
from coterie.engine.embedding import embed
from coterie.engine.events import (
    CallDone,
    Event,
    Handle,
    Order,
    Turn,
    TurnDone,
    TurnFailed,
    TurnStarted,
)
from coterie.engine.exact import ExactMeans
from coterie.engine.local_data import LocalData
from coterie.engine.messages import bytes_peer, bytes_up, check_outcome, items_peer
from coterie.engine.packing import Packed, pack, unpack
from coterie.engine.robust import sent_whole, summed
from coterie.errors import ConfigError, InterruptedRunError, RunError, StateLostError

_logger = logging.getLogger(__name__)

Resolve = Callable[[Handle], Packed]


@dataclass(frozen=True)
class _Built:
    """A model and what a turn may change of it: values, training modes, what is frozen."""

    module: LightningModule
    values: Tensors
    modes: Mapping[str, bool]
    trained: Mapping[str, bool]

    @classmethod
    def of(cls, module: LightningModule) -> "_Built":
        """A newly built model."""
        values = {key: value.clone() for key, value in _tensors(module).items()}
        modes = {name: part.training for name, part in module.named_modules()}
        trained = {name: value.requires_grad for name, value in module.named_parameters()}
        return cls(module, values, modes, trained)

    def reset(self) -> LightningModule:
        """The model as it was built."""
        for key, value in _tensors(self.module).items():
            value.copy_(self.values[key])
        self.module.zero_grad(set_to_none=True)
        for name, part in self.module.named_modules():
            part.training = self.modes[name]
        for name, value in self.module.named_parameters():
            value.requires_grad_(self.trained[name])
        return self.module


class ModulePool:
    """Models kept between turns, each put back to its initial state when it is asked for."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._built: dict[str, _Built] = {}

    def fresh(self, kind: str, build: Callable[[], ModuleT]) -> ModuleT:
        """The model in its initial state; every process builds it from the same seed."""
        if kind not in self._built:
            with seeded(self._seed):
                built = build()
            self._built[kind] = _Built.of(built)
        module = self._built[kind].reset()
        return cast("ModuleT", module)


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
    samples: Mapping[str, NDArray[np.generic]]
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


def _tensors(module: LightningModule) -> dict[str, Tensor]:
    """A model's state, and the buffers that are not part of it because they do not persist."""
    return {**dict(module.named_buffers()), **module.state_dict()}


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
