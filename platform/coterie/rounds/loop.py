"""The round loop: runs one phase after the other until the method names no next phase.

A phase chooses its cohort, offers slots of the server's state, runs the clients' turns on a
backend, aggregates what they send and runs the method's server half.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from secrets import token_hex

from coterie.contract.method import Method
from coterie.contract.observer import Observer
from coterie.contract.phase import Mean, Phase
from coterie.contract.seeds import derive_seed
from coterie.errors import RunError, StateLostError
from coterie.execution.backend import Backend, Workload
from coterie.execution.events import CallLost, Event, Order, Turn, TurnDone, TurnFailed
from coterie.execution.exact import ExactMeans, Layout, heaviest, sum_limit
from coterie.execution.messages import check_offer, check_sums_only
from coterie.execution.packing import digest, pack, unpack
from coterie.execution.robust import robust_means
from coterie.rounds.gather import Failure, PhaseResult, run_phase
from coterie.rounds.participation import Participation, Turnout
from coterie.rounds.privacy import Privacy, sensitivity, turn_secret
from coterie.rounds.sent import Sent, sent_in
from coterie.rounds.server_optimizer import server_step
from coterie.rounds.state import RunState, Traffic

_TOLD = 5
"""Clients whose notes are shown."""


@dataclass(frozen=True, kw_only=True)
class Committed:
    """A completed phase, as `Loop.commit` receives it.

    Attributes:
        phase: The phase.
        result: What its clients gave.
        traffic: Its bytes.
        sent: What its clients sent, key by key.
        seconds: Its wall-clock time.
        simulated: Counts of simulated absences, dropouts and stragglers.
        epsilon: ε up to this phase; None where nobody adds noise.
    """

    phase: Phase
    result: PhaseResult
    traffic: Traffic
    sent: tuple[Sent, ...]
    seconds: float
    simulated: Mapping[str, int] = field(default_factory=dict)
    epsilon: float | None = None


def _give_up(state: RunState, lost: StateLostError) -> None:
    """The default of `Loop.recover`: there is no checkpoint to go back to."""
    raise lost


def _remember(state: RunState, phase: Phase, failures: Sequence[Failure]) -> None:
    """The default of `Loop.abandon`."""
    state.failures += [str(failure) for failure in failures]


def _forget(phase: Phase, failed: TurnFailed) -> None:
    """The default of `Loop.log_failure`."""


@dataclass
class Loop:
    """Runs a method's phases on a backend.

    Attributes:
        method: The method.
        backend: Runs the clients' turns and the server half.
        workload: Config and data.
        observer: Is told about progress.
        commit: Called after each phase, to track, evaluate and checkpoint.
        recover: Called when clients' states were lost; changes the state to one that can go on.
        abandon: Called with the failures of a phase that cannot be completed; keeps them.
        log_failure: Called with each failed turn; keeps its traceback.
        participation: Draws each phase's clients; by default as the workload's config says.
        privacy: Adds noise to the sums; None without `privacy.dp`.
        secret: The key of noise that clients add themselves, in phases with an ε.
        has_run: Whether a client has completed a turn.
    """

    method: Method
    backend: Backend
    workload: Workload
    observer: Observer
    commit: Callable[[RunState, Committed], None]
    recover: Callable[[RunState, StateLostError], None] = _give_up
    abandon: Callable[[RunState, Phase, Sequence[Failure]], None] = _remember
    log_failure: Callable[[Phase, TurnFailed], None] = _forget
    participation: Participation | None = None
    privacy: Privacy | None = None
    secret: bytes = b""
    has_run: bool = False
    _told: set[int] = field(default_factory=set)

    def run(self, state: RunState) -> None:
        """Run from the given state until the method is done; the state changes in place.

        Raises:
            RunError: If a phase fails under the config's failure policy, or no client took part in
                any phase.
        """
        participation = self.participation or Participation(
            self.workload.config, len(self.workload.parts)
        )
        if self.workload.config.privacy.dp.clip is not None and self.privacy is None:
            raise ValueError("privacy.dp asks for noise; give the loop a Privacy")
        while (phase := self.method.next(state.server)) is not None:
            started = time.perf_counter()
            turnout = participation.turnout(phase)
            if self.privacy is not None and not self.privacy.affords(phase, turnout.clients):
                self.observer.note(_spent(self.privacy, phase))
                break
            self.observer.phase_started(phase, len(turnout.clients), self.method.rounds)
            order, versions = self._order(state, phase, turnout)
            try:
                result = self._execute(state, order)
            except StateLostError as lost:
                self.recover(state, lost)
                continue
            self._serve(state, phase, result)
            # Only now, because an interrupted phase runs again and must not be counted twice.
            offered = state.ledger.offer(turnout.clients, versions)
            traffic = state.ledger.collect(offered, result.turns)
            state.keep(result, turnout.simulated)
            state.released = 0 if self.privacy is None else len(self.privacy.spent)
            committed = Committed(
                phase=phase,
                result=result,
                traffic=traffic,
                sent=sent_in(order, result, self.method),
                seconds=time.perf_counter() - started,
                simulated=turnout.simulated,
                epsilon=phase.epsilon if self.privacy is None else self.privacy.epsilon(phase),
            )
            self.commit(state, committed)
        _check_trained(state)

    def _order(
        self, state: RunState, phase: Phase, turnout: Turnout
    ) -> tuple[Order, Mapping[str, tuple[str, int]]]:
        """The backend's order for a phase, and each offered slot's version and bytes."""
        slots = self.method.offer(state.server, phase)
        check_offer(phase, slots, state.server)
        secure = self.workload.config.privacy.secure_aggregation
        if secure:
            check_sums_only(phase)
        packed = {name: pack(slots[name]) for name in sorted(slots)}
        versions = {name: (digest(p), p.nbytes) for name, p in packed.items()}
        config = self.workload.config
        # Sums over samples have no scale of their own, and a median outvotes what is out of scale.
        sums = type(config.method).sums
        limited = not sums and config.aggregation.rule in ("weighted", "equal")
        growth = config.faults.max_growth if limited else None
        most = sum_limit(len(turnout.clients)) if sums else None
        slots_up = {name: state.server.slots[name] for name in sorted(phase.up)}
        limits = self._heaviest(phase, turnout)
        order = Order(
            phase=phase,
            slots={name: self.backend.store(p) for name, p in packed.items()},
            layouts={name: Layout.of(slot, growth, most) for name, slot in slots_up.items()},
            turns=tuple(self._turn(state, phase, c, turnout, limits) for c in turnout.clients),
            rule=config.aggregation.rule,
            session=token_hex(16) if secure and phase.up else "",
            sensitivity=sensitivity(config.privacy.dp, phase, type(config.method)),
        )
        return order, versions

    def _heaviest(self, phase: Phase, turnout: Turnout) -> Mapping[int, int]:
        """The largest weight of each client; empty where weights do not count."""
        config = self.workload.config
        dp = config.privacy.dp
        clipped = dp.clip is not None and dp.unit == "client"
        if config.aggregation.rule != "weighted" or clipped:
            return {}
        return heaviest({c: len(self.workload.parts[c]) for c in turnout.clients}, phase)

    def _turn(
        self,
        state: RunState,
        phase: Phase,
        client: int,
        turnout: Turnout,
        limits: Mapping[int, int],
    ) -> Turn:
        seed = derive_seed(self.workload.config.seed, "client", phase.round, phase.step, client)
        return Turn(
            client=client,
            size=len(self.workload.parts[client]),
            seed=seed,
            state=state.states.get(client),
            mail=state.mail.get(client, {}),
            work=turnout.work.get(client, 1.0),
            heaviest=limits.get(client),
            noise=None if self.privacy is None else self.privacy.training(phase, client),
            secret=b"" if phase.epsilon is None else turn_secret(self.secret, phase, client),
        )

    def _execute(self, state: RunState, order: Order) -> PhaseResult:
        """Run the clients' turns and aggregate what they send by the configured rule."""
        if not order.turns:
            return PhaseResult(means={}, turns=(), failures=(), dropped=())
        config = self.workload.config
        join, abandon = partial(self._join, order), partial(self.abandon, state, order.phase)
        watch = partial(self._watch, order.phase)
        result = run_phase(self.backend, order, config.faults, watch, join, abandoned=abandon)
        fetch, layouts = self.backend.fetch, order.layouts
        robust = robust_means(result.turns, layouts, fetch, config.aggregation)
        # Without their updates, which the object store would otherwise hold for another phase.
        turns = tuple(replace(turn, updates={}) for turn in result.turns)
        return replace(result, means={**result.means, **robust}, turns=turns)

    def _join(self, order: Order, sums: ExactMeans) -> Mapping[str, Mean]:
        """The slots' means; under differential privacy with noise."""
        if self.privacy is None:
            return sums.result()
        return self.privacy.release(
            order, sums, lambda slot: unpack(self.backend.fetch(order.slots[slot]))
        )

    def _serve(self, state: RunState, phase: Phase, result: PhaseResult) -> None:
        """Take the server optimiser's step, then run the method's server half."""
        if not result.turns:
            self.observer.note(f"Round {phase.round}: nobody took part in {phase.name!r}.")
            state.server = state.server.advance(phase, {})
            return
        config = self.workload.config.aggregation
        means, moments = server_step(state.server.slots, result.means, state.optimizer, config)
        state.server = self.backend.serve(state.server, phase, means, result.records)
        state.optimizer = {s: m for s, m in moments.items() if s not in state.server.renewed}

    def _watch(self, phase: Phase, event: Event) -> None:
        """Tell the observer about a backend's event in a phase."""
        if isinstance(event, TurnDone):
            self.has_run = True
            self._tell(event)
            self.observer.client_done(event.client, event.metrics)
        elif isinstance(event, TurnFailed):
            self.observer.client_failed(event.client, event.message)
            self.log_failure(phase, event)
        elif isinstance(event, CallLost):
            self.observer.note(f"An actor was lost ({event.message}); its clients run again.")
            if event.client is not None:
                self.observer.client_failed(event.client, event.message)

    def _tell(self, done: TurnDone) -> None:
        """Show a client's note, once for each client, and only those of the first few."""
        if not done.note or done.client in self._told:
            return
        self._told.add(done.client)
        if len(self._told) <= _TOLD:
            self.observer.note(f"Client {done.client}: {done.note.rstrip('.')}.")
        elif len(self._told) == _TOLD + 1:
            self.observer.note("Notes of further clients are not shown.")


def _spent(privacy: Privacy, phase: Phase) -> str:
    return (
        f"Ended before round {phase.round}: it would exceed "
        f"privacy.dp.budget={privacy.config.budget:g}, of which ε={privacy.epsilon():.3g} is spent."
    )


def _check_trained(state: RunState) -> None:
    """Refuse a run in which no client ever took part: it has learned nothing."""
    ledger = state.ledger
    if state.phases and not (ledger.down or ledger.up or state.states):
        raise RunError(
            f"Nobody took part in any of the {state.phases} phases: no client was present, or all "
            "dropped out; change participation, or take another seed."
        )
