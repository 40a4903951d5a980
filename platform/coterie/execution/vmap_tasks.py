"""Runs clients' tasks side by side, each up to its training, to train them together.

A method's client half is a plain function that calls `Client.fit`. So each task has a thread, which
rests while its client waits for its training. Only one thread runs at a time, in the tasks' order:
there is nothing to lock, and what a task computes does not depend on the others.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from lightning import LightningModule

from coterie.contract.client import Batches, Fit, LocalTrainer
from coterie.execution.events import ClientResult, ClientTask, Event
from coterie.execution.module_pool import ModulePool
from coterie.execution.vmap_trainer import VmapTrainer, VmapTraining

TakeTask = Callable[[ClientTask, LocalTrainer, ModulePool], Event]
"""Runs a client's task with a given trainer and given modules."""


@dataclass(frozen=True, kw_only=True)
class VmapTasks:
    """Runner of tasks in groups, whose clients are trained as one model.

    Attributes:
        size: Clients in a group at most.
        pool: Modules of a group's first client.
    """

    trainer: VmapTrainer
    size: int
    pool: ModulePool
    _pools: list[ModulePool] = field(default_factory=list)

    def run(self, tasks: Sequence[ClientTask], take: TakeTask) -> Iterator[Event]:
        """Run the tasks, group by group, and yield their events in order.

        The seconds of a task are its share of its group's.
        """
        for start in range(0, len(tasks), self.size):
            group = tasks[start : start + self.size]
            while len(self._pools) < len(group):
                self._pools.append(self.pool.beside() if self._pools else self.pool)
            threads = [
                _ClientThread(task, pool, take)
                for task, pool in zip(group, self._pools, strict=False)
            ]
            started = time.perf_counter()
            self._train(threads)
            seconds = (time.perf_counter() - started) / len(group)
            for event in (thread.event for thread in threads):
                yield replace(event, seconds=seconds) if isinstance(event, ClientResult) else event

    def _train(self, threads: Sequence["_ClientThread"]) -> None:
        """Run every task to its end, and train the waiting ones together."""
        waiting = _advanced(threads, [None] * len(threads))
        while waiting:
            answers: Sequence[Fit | BaseException]
            try:
                answers = self.trainer.fit_all([thread.asked for thread in waiting])
            except BaseException as error:  # noqa: BLE001 -- raised in the tasks, which wait
                answers = [error] * len(waiting)
            waiting = _advanced(waiting, answers)


@dataclass
class _ClientThread:
    """A task in its own thread, and the trainer of its client."""

    task: ClientTask
    pool: ModulePool
    take: TakeTask
    _asked: VmapTraining | None = None
    _answer: Fit | BaseException | None = None
    _ended: Event | BaseException | None = None
    _thread: threading.Thread | None = None
    _go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    _rest: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    @property
    def asked(self) -> VmapTraining:
        """The training that the task waits for."""
        assert self._asked is not None  # it has not ended
        return self._asked

    @property
    def event(self) -> Event:
        """The event of the finished task, or raise its error."""
        assert self._ended is not None
        if isinstance(self._ended, BaseException):
            raise self._ended
        return self._ended

    def advance(self, answer: Fit | BaseException | None) -> bool:
        """Run the task up to its next training, or to its end.

        Args:
            answer: The report of its last training, what ended that, or None at first.

        Returns:
            Whether it waits for a training.
        """
        self._answer, self._asked = answer, None
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="client task", daemon=True)
            self._thread.start()
        self._go.release()
        self._rest.acquire()
        return self._asked is not None

    def fit(self, module: LightningModule, batches: Batches, seed: int) -> Fit:
        """Wait until the module is trained with those of the other tasks; see `LocalTrainer`."""
        self._asked = VmapTraining(module, batches, seed)
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
            self._ended = self.take(self.task, self, self.pool)
        except BaseException as error:  # noqa: BLE001 -- raised by `event`
            self._ended = error
        self._rest.release()


def _advanced(
    threads: Sequence[_ClientThread], answers: Sequence[Fit | BaseException | None]
) -> list[_ClientThread]:
    """Advance each client's thread, and return those that wait for a training."""
    return [
        thread for thread, answer in zip(threads, answers, strict=True) if thread.advance(answer)
    ]
