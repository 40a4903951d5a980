"""The round loop: runs phase after phase until the method returns no next one.

A phase chooses its cohort, offers slots of the server's state, runs the clients' tasks on a
backend, aggregates what they send and runs the method's server half.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from uuid import uuid4

from coterie.aggregation.compose import compose_stages
from coterie.aggregation.pipeline import Pipeline
from coterie.aggregation.stage import PhaseRun, Sent
from coterie.contract.method import Method
from coterie.contract.observer import Observer
from coterie.contract.phase import Phase
from coterie.contract.seeds import derive_seed
from coterie.errors import RunError, StateLostError
from coterie.execution.backend import Backend, Workload
from coterie.execution.events import (
    CallLost,
    ClientFailed,
    ClientResult,
    ClientTask,
    Event,
    PhaseRequest,
)
from coterie.execution.messages import check_offer
from coterie.execution.packing import digest, pack
from coterie.rounds.gather import Failure, PhaseResult, run_phase
from coterie.rounds.participation import Participation, Turnout
from coterie.rounds.sent import sent_in
from coterie.rounds.state import RunState, Traffic

_TOLD = 5
"""The most clients whose notes are shown."""


@dataclass(frozen=True, kw_only=True)
class Committed:
    """A completed phase, as `Loop.commit` receives it.

    Attributes:
        result: What its clients gave.
        sent: What its clients sent, key by key.
        seconds: Its wall-clock time.
        simulated: Counts of simulated absences, dropouts and stragglers.
        metrics: Numbers of the aggregation's stages up to this phase.
        measured: Numbers of the method's server half.
    """

    phase: Phase
    result: PhaseResult
    traffic: Traffic
    sent: tuple[Sent, ...]
    seconds: float
    simulated: Mapping[str, int] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    measured: Mapping[str, float] = field(default_factory=dict)


def _give_up(state: RunState, lost: StateLostError) -> None:
    """Raise: the default of `Loop.recover`, as there is no checkpoint to go back to."""
    raise lost


def _remember(state: RunState, phase: Phase, failures: Sequence[Failure]) -> None:
    """Keep the failures in the result: the default of `Loop.abandon`."""
    state.failures += [str(failure) for failure in failures]


def _forget(phase: Phase, failed: ClientFailed) -> None:
    """Do nothing: the default of `Loop.log_failure`."""


@dataclass
class Loop:
    """The round loop, which runs a method's phases on a backend.

    Attributes:
        commit: Called after each phase, to track, evaluate and checkpoint.
        recover: Called when clients' states were lost; changes the state to one that can go on.
        abandon: Called with the failures of a phase that cannot be completed; keeps them.
        log_failure: Called with each failed task; keeps its traceback.
        participation: Draws each phase's clients; by default as the workload's config says.
        aggregation: The stages of the aggregation; likewise. The backend's processes have the same.
        has_run: Whether a client has completed a task.
    """

    method: Method
    backend: Backend
    workload: Workload
    observer: Observer
    commit: Callable[[RunState, Committed], None]
    recover: Callable[[RunState, StateLostError], None] = _give_up
    abandon: Callable[[RunState, Phase, Sequence[Failure]], None] = _remember
    log_failure: Callable[[Phase, ClientFailed], None] = _forget
    participation: Participation | None = None
    aggregation: Pipeline | None = None
    should_stop: Callable[[], bool] = lambda: False
    has_run: bool = False
    _told: set[int] = field(default_factory=set)
    _texts: set[str] = field(default_factory=set)

    @cached_property
    def pipeline(self) -> Pipeline:
        """The stages of the aggregation."""
        return self.aggregation or compose_stages(self.workload.config, self.method)

    def run(self, state: RunState) -> None:
        """Run from the given state until the method is done; the state changes in place.

        Raises:
            RunError: If a phase fails under the config's failure policy, or no client took part in
                any phase.
        """
        participation = self.participation or Participation(
            self.workload.config, len(self.workload.parts)
        )
        while (phase := self._next(state)) is not None:
            started = time.perf_counter()
            turnout = participation.turnout(phase)
            if why := self.pipeline.ends(phase, turnout.clients):
                self.observer.note(why)
                break
            self.observer.phase_started(phase, len(turnout.clients), self.method.rounds)
            run = self._prepare(state, phase, turnout)
            request, versions = self._request(state, run, turnout)
            try:
                result = self._execute(state, request, run)
            except StateLostError as lost:
                self.recover(state, lost)
                continue
            self._serve(state, run, result)
            # Only now, because an interrupted phase runs again and must not be counted twice.
            offered = state.ledger.offer(turnout.clients, versions)
            traffic = state.ledger.collect(offered, result.client_results)
            state.keep(result, turnout.simulated)
            state.counts = self.pipeline.counts()
            committed = Committed(
                phase=phase,
                result=result,
                traffic=traffic,
                sent=tuple(self.pipeline.audit(sent_in(request, result), run, result.means)),
                seconds=time.perf_counter() - started,
                simulated=turnout.simulated,
                metrics=self.pipeline.metrics(phase),
                measured=self.method.measured(state.server),
            )
            self.commit(state, committed)
            if phase.ends_round and self.should_stop():
                state.stopped = self.method.rounds
        else:
            self._tell_if_early(state)
        _check_trained(state)

    def _next(self, state: RunState) -> Phase | None:
        """Return the next phase; None after the last, or where a callback has ended the run."""
        if state.stopped == self.method.rounds:
            return None
        state.stopped = None  # by a callback, in a run of other length
        return self.method.next(state.server)

    def _tell_if_early(self, state: RunState) -> None:
        round_ = state.server.round
        if state.stopped is not None:
            self.observer.note(f"A callback ended the run after round {round_}.")
        elif self.method.rounds and round_ < self.method.rounds:
            self.observer.note(
                f"The method ended after round {round_} of at most {self.method.rounds}."
            )

    def _prepare(self, state: RunState, phase: Phase, turnout: Turnout) -> PhaseRun:
        """Return what clients receive in a phase, and the form of what they contribute."""
        offered = self.method.offer(state.server, phase)
        check_offer(phase, offered, state.server)
        sizes = {client: len(self.workload.parts[client]) for client in turnout.clients}
        return self.pipeline.prepare(phase, sizes, offered, state.server.slots, state.stages)

    def _request(
        self, state: RunState, run: PhaseRun, turnout: Turnout
    ) -> tuple[PhaseRequest, Mapping[str, tuple[str, int]]]:
        """Return the backend's request for a phase, and each offered slot's version and bytes."""
        packed = {name: pack(run.offered[name]) for name in sorted(run.offered)}
        versions = {name: (digest(p), p.nbytes) for name, p in packed.items()}
        stages, seed = self.pipeline.tasks(run), self.workload.config.seed
        phase = run.phase
        tasks = (
            ClientTask(
                client=client,
                size=size,
                seed=derive_seed(seed, "client", phase.round, phase.step, client),
                state=state.states.get(client),
                peer_messages=state.peer_messages.get(client, {}),
                work=turnout.work.get(client, 1.0),
                stages=stages[client],
            )
            for client, size in run.sizes.items()
        )
        request = PhaseRequest(
            phase=phase,
            slots={name: self.backend.store(p) for name, p in packed.items()},
            layouts=run.layouts,
            tasks=tuple(tasks),
            key=uuid4().hex,
            stages=run.data,
        )
        return request, versions

    def _execute(self, state: RunState, request: PhaseRequest, run: PhaseRun) -> PhaseResult:
        """Run the clients' tasks and aggregate what they send."""
        if not request.tasks:
            return PhaseResult(means={}, client_results=(), failures=(), dropped=())
        return run_phase(
            self.backend,
            request,
            run,
            self.pipeline,
            self.workload.config.faults,
            watch=partial(self._watch, request.phase),
            abandoned=partial(self.abandon, state, request.phase),
        )

    def _serve(self, state: RunState, run: PhaseRun, result: PhaseResult) -> None:
        """Let the aggregation's stages take their steps, then run the method's server half."""
        if not result.client_results:
            self.observer.note(
                f"Round {run.phase.round}: no client took part in {run.phase.name!r}."
            )
            state.server = state.server.advance(run.phase, {})
            return
        means, kept = self.pipeline.step(run, result.means, state.stages)
        state.server = self.method.server(state.server, run.phase, means, result.gathered)
        renewed = state.server.renewed
        state.stages = {key: v for key, v in kept.items() if key.partition("/")[2] not in renewed}

    def _watch(self, phase: Phase, event: Event) -> None:
        """Pass a backend's event on to the observer."""
        if isinstance(event, ClientResult):
            self.has_run = True
            self._tell(event)
            self.observer.client_done(event.client, event.metrics)
        elif isinstance(event, ClientFailed):
            self.observer.client_failed(event.client, event.message)
            self.log_failure(phase, event)
        elif isinstance(event, CallLost):
            self.observer.note(f"An actor was lost ({event.message}); its clients run again.")
            if event.client is not None:
                self.observer.client_failed(event.client, event.message)

    def _tell(self, done: ClientResult) -> None:
        """Show a client's note: each text once, one note per client, only for a few clients."""
        if not done.note or done.client in self._told or done.note in self._texts:
            return
        self._told.add(done.client)
        self._texts.add(done.note)
        if len(self._told) <= _TOLD:
            self.observer.note(f"Client {done.client}: {done.note.rstrip('.')}.")
        elif len(self._told) == _TOLD + 1:
            self.observer.note("Notes of further clients are not shown.")


def _check_trained(state: RunState) -> None:
    """Refuse a run in which no client ever took part: it has learned nothing."""
    ledger = state.ledger
    if state.phases and not (ledger.down or ledger.up or state.states):
        raise RunError(
            f"No client took part in any of the {state.phases} phases: none was present, or all "
            "dropped out; change participation, or take another seed."
        )
