"""Clients' turns side by side, each up to its training, so that they can be trained together.

A method's client half is a plain function that calls `Client.fit`. So each turn has a thread, which
rests while its client waits for its training. Only one thread runs at a time, in the turns' order:
there is nothing to lock, and what a turn computes does not depend on the others.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from lightning import LightningModule

from coterie.contract.client import Batches, Fit, LocalTrainer
from coterie.execution.events import Event, Turn, TurnDone
from coterie.execution.module_pool import ModulePool
from coterie.execution.stacked_trainer import StackedTrainer, Training

TakeTurn = Callable[[Turn, LocalTrainer, ModulePool], Event]
"""Runs a client's turn with a trainer and modules of its own."""


@dataclass(frozen=True, kw_only=True)
class StackedTurns:
    """Runs turns in groups, whose clients are trained as one model.

    Attributes:
        trainer: Trains a group's clients.
        size: Clients in a group at most.
        pool: Modules of a group's first client.
    """

    trainer: StackedTrainer
    size: int
    pool: ModulePool
    _pools: list[ModulePool] = field(default_factory=list)

    def run(self, turns: Sequence[Turn], take: TakeTurn) -> Iterator[Event]:
        """Run the turns, group by group, and yield their events in order.

        The seconds of a turn are its share of its group's.
        """
        for start in range(0, len(turns), self.size):
            group = turns[start : start + self.size]
            while len(self._pools) < len(group):
                self._pools.append(self.pool.beside() if self._pools else self.pool)
            lanes = [
                _Lane(turn, pool, take) for turn, pool in zip(group, self._pools, strict=False)
            ]
            started = time.perf_counter()
            self._train(lanes)
            seconds = (time.perf_counter() - started) / len(group)
            for event in (lane.event for lane in lanes):
                yield replace(event, seconds=seconds) if isinstance(event, TurnDone) else event

    def _train(self, lanes: Sequence["_Lane"]) -> None:
        """Run every turn to its end, and train together whatever waits for its training."""
        waiting = _advanced(lanes, [None] * len(lanes))
        while waiting:
            answers: Sequence[Fit | BaseException]
            try:
                answers = self.trainer.fit_all([lane.asked for lane in waiting])
            except BaseException as error:  # noqa: BLE001 -- raised in the turns, which wait
                answers = [error] * len(waiting)
            waiting = _advanced(waiting, answers)


@dataclass
class _Lane:
    """A turn in a thread of its own, and the trainer of its client."""

    turn: Turn
    pool: ModulePool
    take: TakeTurn
    _asked: Training | None = None
    _answer: Fit | BaseException | None = None
    _ended: Event | BaseException | None = None
    _thread: threading.Thread | None = None
    _go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    _rest: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    @property
    def asked(self) -> Training:
        """The training that it waits for."""
        assert self._asked is not None  # it has not ended
        return self._asked

    @property
    def event(self) -> Event:
        """The event of the turn, which has ended; raises what has ended it otherwise."""
        assert self._ended is not None
        if isinstance(self._ended, BaseException):
            raise self._ended
        return self._ended

    def advance(self, answer: Fit | BaseException | None) -> bool:
        """Run the turn up to its next training, or to its end.

        Args:
            answer: The report of its last training, what ended that, or None at first.

        Returns:
            Whether it waits for a training.
        """
        self._answer, self._asked = answer, None
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="turn", daemon=True)
            self._thread.start()
        self._go.release()
        self._rest.acquire()
        return self._asked is not None

    def fit(self, module: LightningModule, batches: Batches, seed: int) -> Fit:
        """Wait until the module is trained with those of the other turns; see `LocalTrainer`."""
        self._asked = Training(module, batches, seed)
        self._rest.release()
        self._go.acquire()
        answer = self._answer
        if isinstance(answer, BaseException):
            raise answer
        assert answer is not None
        return answer

    def _run(self) -> None:
        self._go.acquire()
        try:
            self._ended = self.take(self.turn, self, self.pool)
        except BaseException as error:  # noqa: BLE001 -- raised by `event`
            self._ended = error
        self._rest.release()


def _advanced(lanes: Sequence[_Lane], answers: Sequence[Fit | BaseException | None]) -> list[_Lane]:
    """Advance each turn, and return those that wait for a training."""
    return [lane for lane, answer in zip(lanes, answers, strict=True) if lane.advance(answer)]
