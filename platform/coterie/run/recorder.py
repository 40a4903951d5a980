"""Follows each phase: records metrics, and evaluates and writes checkpoints when due."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from coterie.checkpoints.writer import CheckpointWriter
from coterie.config.explain import nearest
from coterie.config.schema import RunConfig
from coterie.contract.data import Indices
from coterie.contract.method import Method
from coterie.contract.observer import Observer, PhaseRecord
from coterie.contract.own_module import FederatesModule
from coterie.contract.phase import Phase
from coterie.errors import listed
from coterie.evaluation.scorer import Evaluation, Scorer
from coterie.execution.backend import Backend
from coterie.execution.events import ClientResult
from coterie.peers.links import modelled_seconds
from coterie.rounds.gather import Failure
from coterie.rounds.loop import Committed
from coterie.rounds.state import RunState
from coterie.run.client_groups import GROUP, ClientGroups
from coterie.run.client_table import ClientRow
from coterie.run.fine_tuning import FineTuning
from coterie.run.history import HOLDOUT, VALIDATION, held_out_scores
from coterie.tracking.loggers import Position, Tracker
from coterie.tracking.metrics_log import MetricsRow, flat
from coterie.tracking.summary import Summary

_UNREACHED = "its actor or node is gone", "not in the scores"
_SHOWN = 5
"""Failures at one time that are shown; all are recorded."""
_AGAIN = "replaced, its work runs again"


@dataclass
class Recorder:
    """Receiver of a run's completed phases from the round loop.

    Attributes:
        method: The method; it knows whether a round is the last.
        backend: The run's backend; it knows which actors were lost.
        parts: Client to its rows; their number weights a client in means.
        clients: Tabulates what each client has done.
        groups: Scores the method's groups of clients; None if it has none.
        fine_tuning: Fine-tunes with shares of the labels at the end; None if not asked for.
        seconds: Purpose to wall-clock seconds.
        stages: Stage to its first round.
        told: Sentences that are shown once.
    """

    config: RunConfig
    method: Method
    backend: Backend
    evaluator: Scorer
    tracker: Tracker
    observer: Observer
    parts: Sequence[Indices]
    clients: Callable[[RunState], Sequence[ClientRow]]
    writer: CheckpointWriter
    groups: ClientGroups | None = None
    fine_tuning: FineTuning | None = None
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    stages: dict[str, int] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)

    def abandon(self, state: RunState, phase: Phase, failures: Sequence[Failure]) -> None:
        """Record the failures of a phase that cannot be completed."""
        for failure in failures:
            state.failures.append(str(failure))
            self._track_failure(phase, failure)
        self.keep_losses(state, phase)

    def commit(self, state: RunState, committed: Committed) -> None:
        """Record a phase; evaluate and checkpoint at the end of a round when due."""
        phase, tasks = committed.phase, committed.result.client_results
        self.keep_losses(state, phase)
        self.seconds["training"] += committed.seconds
        self.seconds.setdefault("first_phase", committed.seconds)
        sizes = {task.client: len(self.parts[task.client]) for task in tasks}
        means = {**joined_metrics(phase, tasks, sizes), **committed.measured}
        self.stages.setdefault(phase.stage, phase.round)
        evaluation = None
        try:
            evaluation = self._evaluate(state, phase)
        finally:  # if interrupted too, because the next checkpoint holds this phase
            self._track(committed, {**means, **self._group_scores(state)}, evaluation)
        if evaluation is not None:
            self.tracker.log_table("clients", self.clients(state))
        failures = tuple(str(failure) for failure in committed.result.failures)
        now = committed.traffic.totals
        self.observer.phase_finished(
            PhaseRecord(
                phase=phase,
                participants=tuple(task.client for task in tasks),
                failures=failures,
                loss=means.get("loss"),
                metrics=means,
                bytes_down=now["down"],
                bytes_up=now["up"],
                bytes_peer=now["peer"],
                bytes_before={way: size - now[way] for way, size in state.ledger.totals.items()},
                seconds=committed.seconds,
                client_seconds=tuple(task.seconds for task in tasks),
                simulated=committed.simulated,
                evaluation=evaluation,
                epsilon=committed.metrics.get("epsilon"),
            )
        )
        every = self.config.checkpoint.every
        best = self._is_best(state, self._measured(phase, means, evaluation))
        if best or (phase.ends_round and every and phase.round % every == 0):
            self.writer.begin(state, self.tracker.position, best=best)

    def checkpoint(self, state: RunState) -> None:
        """Write the run's last checkpoint."""
        started = time.perf_counter()
        self.writer.finish(state, self.tracker.position)
        self.seconds["checkpoints"] += time.perf_counter() - started

    def track_end(self, state: RunState, summary: Summary) -> None:
        """Track the run's final numbers, as the last row."""
        row = _row(self._end(state), summary.numbers(), None)
        self.tracker.log(replace(row, status=summary.status))

    def _end(self, state: RunState) -> Phase:
        """Return the round and step under which a run's final numbers are tracked."""
        return Phase(round=state.server.round, stage=self._stage, name="final")

    @property
    def _stage(self) -> str:
        """The stage that is under way or ended last."""
        return next(reversed(self.stages), "")

    def rewind(self, position: Position | None) -> None:
        """Truncate the metrics to a checkpoint, or to the start."""
        self.tracker.rewind(position)
        self.stages.clear()
        for row in self.tracker.rows("server"):
            self.stages.setdefault(row["stage"], row["round"])

    def evaluate(self, state: RunState) -> Evaluation:
        """Run the final evaluation."""
        evaluation = self.evaluator.final(state.server)
        self._account(state)
        metrics = {**evaluation.metrics}
        if held := held_out_scores(self.tracker.rows("server", "client")):
            metrics[HOLDOUT] = held
        if self.groups is not None:
            metrics[GROUP] = self.groups.scores(state.server)
        if self.fine_tuning is not None:
            self.backend.rest()  # actors' shares of the GPU are free for it
            shares = self.config.evaluation.labelled_shares
            metrics |= self.fine_tuning.scores(state.server, shares)
        self.observer.evaluated(state.server.round, flat(metrics), final=True)
        return replace(evaluation, metrics=metrics)

    def _group_scores(self, state: RunState) -> dict[str, float]:
        found = {} if self.groups is None else self.groups.scores(state.server)
        return {f"{GROUP}/{name}": value for name, value in found.items()}

    def _account(self, state: RunState) -> None:
        """Record an evaluation's bytes, lost actors and unreachable clients."""
        missed = self.evaluator.missed
        state.ledger.evaluation += self.evaluator.sent
        state.dropped += len(missed)
        place = Phase(round=state.server.round, stage=self._stage, name="evaluation")
        self.keep_losses(state, place)
        self._keep(state, place, [(client, *_UNREACHED) for client in missed])
        self.evaluator.sent, self.evaluator.missed = 0, ()

    def keep_losses(self, state: RunState, place: Phase | None = None) -> None:
        """Record the actors that were lost since the last call, except during tasks."""
        place = place or self._end(state)
        self._keep(state, place, [(None, why, _AGAIN) for why in self.backend.take_losses()])

    def _keep(
        self, state: RunState, place: Phase, found: Sequence[tuple[int | None, str, str]]
    ) -> None:
        """Record failures of clients and actors, with each reason and what was done about it."""
        for number, (client, why, remedy) in enumerate(found):
            failure = Failure(
                round=place.round, phase=place.name, client=client, message=why, remedy=remedy
            )
            state.failures.append(str(failure))
            if number < _SHOWN:
                self.observer.note(f"{failure}.")
            elif number == _SHOWN:
                self.observer.note(f"{len(found) - _SHOWN:,} more failures are in metrics.jsonl.")
            self._track_failure(place, failure)

    def _measured(
        self, phase: Phase, means: Mapping[str, float], scores: Mapping[str, float] | None
    ) -> Mapping[str, float]:
        """Return the metrics that say how good a round's model is; none, if nothing measured it."""
        if isinstance(self.method, FederatesModule) and self.method.clients_validate:
            return means if phase.name == VALIDATION else {}
        return scores or {}

    def _is_best(self, state: RunState, measured: Mapping[str, float]) -> bool:
        """Return whether this evaluation is the best so far by `checkpoint.best`; remember it."""
        policy = self.config.checkpoint
        if not policy.best or not measured:
            return False
        # A name may have its group in front, as in summary.json and in the logs.
        short = policy.best.removeprefix(f"{self.evaluator.group}/")
        if (value := measured.get(policy.best, measured.get(short))) is None:
            close = nearest(short, measured)
            hint = f"did you mean {close}?" if close else f"there is {listed(sorted(measured))}."
            self._tell_once(
                f"checkpoint.best={policy.best}: no measured value has this name, so no best "
                f"checkpoint is kept; {hint}"
            )
            return False
        sign = -1 if policy.lower_is_better else 1
        if math.isnan(value) or (state.best is not None and sign * value <= sign * state.best):
            return False
        state.best = value
        return True

    def _tell_once(self, sentence: str) -> None:
        if sentence not in self.told:
            self.told.add(sentence)
            self.observer.note(sentence)

    def _evaluate(self, state: RunState, phase: Phase) -> dict[str, float] | None:
        last = self.method.next(state.server) is None
        due = self.evaluator.due(phase.round, last)
        if last and self.config.checkpoint.best:  # it may be the best
            due = self.config.evaluation.every > 0
        if not (phase.ends_round and due):
            return None
        started = time.perf_counter()
        scores = self.evaluator.quick(state.server)
        self._account(state)
        self.seconds["evaluation"] += time.perf_counter() - started
        named = {self.evaluator.full_name(name): value for name, value in scores.items()}
        self.observer.evaluated(phase.round, named, final=False)
        return scores or None

    def _track(
        self, committed: Committed, means: Mapping[str, float], scores: Mapping[str, float] | None
    ) -> None:
        phase, result = committed.phase, committed.result
        simulated = committed.simulated
        modelled = modelled_seconds(committed.traffic.totals, self.config.links)
        values = {
            **means,
            **committed.traffic.rows(),
            **{f"modelled_seconds/{way}": value for way, value in modelled.items()},
            **{name: count for name, count in simulated.items() if name != "dropped"},
            **({"dropped/simulated": simulated["dropped"]} if "dropped" in simulated else {}),
            **committed.metrics,
            "participants": len(result.client_results),
            "failures": len(result.failures),
            "dropped": len(result.dropped) + simulated.get("dropped", 0),
            "seconds": committed.seconds,
            **{self.evaluator.full_name(name): value for name, value in (scores or {}).items()},
        }
        self.tracker.log(_row(phase, values, None))
        for done in result.client_results[: self.config.tracking.client_rows]:
            own = {
                **done.metrics,
                "seconds": done.seconds,
                "bytes/up": sum(done.bytes_up.values()),
            }
            self.tracker.log(_row(phase, own, done.client))
        messages = tuple(sent.row() for sent in committed.sent)
        self.tracker.log_text(replace(_row(phase, {}, None), messages=messages))
        for failure in result.failures:
            self._track_failure(phase, failure)

    def _track_failure(self, phase: Phase, failure: Failure) -> None:
        self.tracker.log_text(replace(_row(phase, {}, failure.client), failure=str(failure)))


def joined_metrics(
    phase: Phase, results: tuple[ClientResult, ...], sizes: Mapping[int, int]
) -> dict[str, float]:
    """Aggregate the clients' metrics over a phase.

    Returns:
        Metric to its mean, weighted by numbers of samples; to its minimum for `phase.minima`.
    """
    sums: dict[str, float] = defaultdict(float)
    weights: dict[str, int] = defaultdict(int)
    for done in results:
        for name, value in done.metrics.items():
            sums[name] += sizes[done.client] * value
            weights[name] += sizes[done.client]
    means = {name: sums[name] / weights[name] for name in sums}
    every = {name: [t.metrics[name] for t in results if name in t.metrics] for name in phase.minima}
    return {**means, **{name: min(values) for name, values in every.items() if values}}


def _row(phase: Phase, values: Mapping[str, float], client: int | None) -> MetricsRow:
    return MetricsRow(
        round=phase.round,
        stage=phase.stage,
        phase=phase.name,
        step=phase.step,
        values=values,
        client=client,
    )
