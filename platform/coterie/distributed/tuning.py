"""A search for hyperparameters by Ray Tune: trials side by side, stopped early by ASHA.

Tune's own files are not kept. Every trial's run directory says how far it came, so a search goes on
from there, and ASHA decides on what all trials have ever reported: Ray Tune itself would restore
its trials, but not what ASHA knows of them.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler

from coterie.config.schema import ClusterConfig
from coterie.distributed.cluster import connect, disconnect
from coterie.distributed.session_folder import working_folder
from coterie.errors import reason

_ROUND, _VALUE = "round", "objective"
_NEVER = 10**9
"""A number of rounds after which ASHA would end every trial."""
_LITTLE = 0.001
"""Share of the resource that only the driver's node has, which each trial takes."""
_LOST = 2
"""Times that a trial starts again from its checkpoint after its Ray process was lost."""
_SETTINGS = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
}
"""Tune's environment: its own output off, signals left to this program."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """A trial's report.

    Attributes:
        value: The objective after it; None if it was not measured.
        code: The exit code of the trial's process, if it has ended; its last report has one.
        reason: Why it ended with this code.
    """

    round: int
    value: float | None
    code: int | None = None
    reason: str = ""


class Trial(Protocol):
    """A running trial, in a process that Ray started."""

    def next(self) -> Report:
        """Wait for the next report."""

    def stop(self) -> None:
        """Stop the trial, and wait for it."""


class Listener(Protocol):
    """Receiver of news of the trials, which it knows by their names."""

    def started(self, name: str) -> None:
        """Note that a trial has started."""

    def reported(self, name: str, report: Report) -> None:
        """Note that a trial has reported; the last report has an exit code."""

    def stopped(self, name: str, round_: int) -> None:
        """Note that ASHA stops a trial after this round."""

    def step(self) -> None:
        """Do nothing by default; called about once a second, and an exception ends the search."""


@contextmanager
def ray_for_trials(config: ClusterConfig) -> Iterator[None]:
    """Connect to the trials' cluster, or start a local Ray just for Tune.

    A local Ray listens on the loopback, where no other driver can join it; trials without a cluster
    start their own, as runs of a comparison do.
    """
    serial = config.backend == "serial"
    own = config.model_copy(update={"address": "local"}) if serial else config
    ours = connect(own, forked=False)  # nothing trains in its actors
    try:
        yield
    finally:
        if ours:
            disconnect()


def run_trials(
    names: Sequence[str],
    begin: Callable[[str], Trial],
    listener: Listener,
    *,
    lower: bool,
    grace: int | None,
    reduction: float,
    history: Mapping[str, Sequence[Report]],
    parallel: int,
    gpu: bool,
) -> None:
    """Run trials by Ray Tune, each as a process on the driver's node.

    Args:
        names: The trials that have to run.
        begin: Starts a trial, in that process; it is pickled.
        listener: Is told about the trials.
        lower: Whether less of the objective is better.
        grace: Rounds before ASHA (Li et al., 2020) may stop a trial; None: it never does.
        reduction: Of the trials at a decision one in `reduction` goes on, and decisions are as many
            times as many rounds apart.
        history: What each trial, of these and others, has reported before, in order.
        parallel: Trials at a time.
        gpu: Whether each takes a whole GPU.
    """
    mode = "min" if lower else "max"
    asha = None if grace is None else _asha(grace, reduction, mode, history)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    with _environment(_SETTINGS), working_folder() as folder:
        tune.run(
            tune.with_parameters(_Followed, begin=begin),
            name="search",
            config={"trial": tune.grid_search(list(names))},
            resources_per_trial=tune.PlacementGroupFactory([_place(gpu=gpu)]),
            scheduler=asha or FIFOScheduler(),
            max_concurrent_trials=parallel,
            max_failures=_LOST,
            raise_on_failed_trial=False,
            storage_path=str(folder),
            callbacks=[_Told(listener)],
            verbose=0,
        )


class _Followed(tune.Trainable):  # type: ignore[misc]
    """A trial as Ray Tune's `Trainable`, with one report per step."""

    def setup(self, config: Mapping[str, Any], begin: Callable[[str], Trial]) -> None:
        self._trial = begin(config["trial"])

    def step(self) -> dict[str, Any]:
        report = self._trial.next()
        result = {_ROUND: report.round, "report": report, "done": report.code is not None}
        return result if report.value is None else {**result, _VALUE: report.value}

    def cleanup(self) -> None:
        self._trial.stop()


class _Told(tune.Callback):  # type: ignore[misc]
    """Ray Tune callback that passes its events on to a listener."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def on_step_begin(self, **_: Any) -> None:
        self._listener.step()

    def on_trial_start(self, *, trial: Any, **_: Any) -> None:
        self._listener.started(trial.config["trial"])

    def on_trial_result(self, *, trial: Any, result: Mapping[str, Any], **_: Any) -> None:
        self._listener.reported(trial.config["trial"], result["report"])

    def on_trial_complete(self, *, trial: Any, **_: Any) -> None:
        last: Report = trial.last_result["report"]
        if last.code is None:
            self._listener.stopped(trial.config["trial"], last.round)

    def on_trial_error(self, *, trial: Any, **_: Any) -> None:
        why = f"Ray lost its process ({reason(trial.get_error())})."
        lost = Report(round=0, value=None, code=1, reason=why)
        self._listener.reported(trial.config["trial"], lost)


def _asha(
    grace: int, reduction: float, mode: str, history: Mapping[str, Sequence[Report]]
) -> ASHAScheduler:
    """Return an ASHA scheduler that has already received the trials' earlier reports."""
    asha = ASHAScheduler(
        time_attr=_ROUND,
        metric=_VALUE,
        mode=mode,
        max_t=max(_NEVER, grace),
        grace_period=grace,
        reduction_factor=reduction,
    )
    for name, reports in history.items():
        known = SimpleNamespace(trial_id=name)
        asha.on_trial_add(None, known)
        for report in reports:
            if report.value is not None:
                asha.on_trial_result(None, known, {_ROUND: report.round, _VALUE: report.value})
    return asha


def _place(*, gpu: bool) -> dict[str, float]:
    """Return the resources of a trial.

    Its driver's node, where the run directories are, and perhaps a GPU.
    """
    here = ray.get_runtime_context().get_node_id()
    (node,) = [node for node in ray.nodes() if node["NodeID"] == here]
    own = next(
        name
        for name in node["Resources"]
        if name.startswith("node:") and "internal_head" not in name
    )
    return {own: _LITTLE, **({"GPU": 1.0} if gpu else {})}


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables within the context."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
