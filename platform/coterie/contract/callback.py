"""Callbacks that follow a whole run, unlike Lightning's, which follow the Trainer on a client."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from coterie.config.record_names import Status
from coterie.contract.observer import Observer, PhaseRecord

_HOOKS = ("start", "client_done", "client_failed", "phase_finished", "evaluated", "finish")


class RunCallback:
    """Base of callbacks that follow a whole run; override the hooks that you need.

    The hooks are called in the process that drives the run, in the order of events, after the
    terminal has shown them. They must not change the run. An exception in a hook ends the run as
    failed. To end it as completed after the present round, set `self.should_stop = True`.

    A callback that also has to follow the training on each client inherits from
    `lightning.Callback` too. Its Lightning hooks are called in the process of the client, on a
    fresh copy for each client's training, so the two halves share no state.

    Attributes:
        should_stop: Whether to end the run after the present round; the final model is then
            evaluated and saved.
    """

    should_stop: bool = False

    def on_run_start(self, experiment: str, details: Mapping[str, str]) -> None:
        """Note that the run begins.

        Args:
            experiment: The experiment's name.
            details: Method, data, clients, backend, seed and run directory ("into").
        """

    def on_client_end(self, client: int, metrics: Mapping[str, float]) -> None:
        """Note that a client's task succeeded, with the means of its training's scalars."""

    def on_client_failure(self, client: int, message: str) -> None:
        """Note that a client's task failed; the run's policy decides what happens next."""

    def on_phase_end(self, record: PhaseRecord) -> None:
        """Note that a phase is over: aggregated and, where due, evaluated."""

    def on_round_end(self, record: PhaseRecord) -> None:
        """Note that a round is over.

        The record is that of its last phase. If nothing is trained in it, as in a validation,
        `loss` is that of the round's last phase that trained.
        """

    def on_evaluation_end(self, round_: int, scores: Mapping[str, float], *, final: bool) -> None:
        """Note that an evaluation is over.

        Args:
            round_: The round.
            scores: Metrics by their names in metrics.jsonl: {"clustering/acc": 0.91, …}.
            final: Whether it is the one at the end of the run, which takes all samples.
        """

    def on_run_end(self, status: Status, error: str | None) -> None:
        """Note that the run is over, and why if it did not complete."""


class _Hooks:
    """A callback as an observer, for the events that have a hook."""

    def __init__(self, callback: RunCallback) -> None:
        self.start = callback.on_run_start
        self.client_done = callback.on_client_end
        self.client_failed = callback.on_client_failure
        self.evaluated = callback.on_evaluation_end
        self._callback = callback
        self._loss: float | None = None

    def phase_finished(self, record: PhaseRecord) -> None:
        self._callback.on_phase_end(record)
        self._loss = self._loss if record.loss is None else record.loss
        if record.phase.ends_round:
            self._callback.on_round_end(replace(record, loss=self._loss))
            self._loss = None

    def finish(self, status: Status, *, error: str | None = None, **_: Any) -> None:
        self._callback.on_run_end(status, error)


class Followed:
    """An observer, and callbacks that follow the same run.

    Args:
        view: Is told about everything.
        callbacks: Have their hooks called, in order, after the view.
    """

    def __init__(self, view: Observer, callbacks: Sequence[RunCallback]) -> None:
        self._view = view
        self._hooks = [_Hooks(callback) for callback in callbacks]

    def __getattr__(self, name: str) -> Callable[..., None]:
        tell = getattr(self._view, name)
        return partial(self._tell_all, name) if name in _HOOKS else tell

    def _tell_all(self, name: str, *args: Any, **kwargs: Any) -> None:
        for each in (self._view, *self._hooks):
            getattr(each, name)(*args, **kwargs)
