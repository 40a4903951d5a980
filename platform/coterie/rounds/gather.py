"""Collects a phase's events and applies the failure policy: policy is apart from execution."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from coterie.aggregation.exact import ExactMeans
from coterie.aggregation.pipeline import Pipeline
from coterie.aggregation.stage import PhaseRun
from coterie.config.schema import FaultsConfig
from coterie.contract.phase import Mean, Tensors
from coterie.errors import ConfigError, CoterieError, InterruptedRunError, RunError
from coterie.execution.backend import Backend
from coterie.execution.events import (
    CallDone,
    CallLost,
    Event,
    Handle,
    Order,
    Turn,
    TurnDone,
    TurnFailed,
)
from coterie.execution.packing import unpack
from coterie.rounds.failure_log import FAILURES


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A failed client, or a lost actor where `client` is None."""

    round: int
    phase: str
    client: int | None
    message: str
    remedy: str

    def __str__(self) -> str:
        """The failure as one sentence."""
        who = "an actor" if self.client is None else f"client {self.client}"
        return f"round {self.round}, {self.phase}: {who} failed ({self.message}); {self.remedy}"


@dataclass(frozen=True, kw_only=True)
class PhaseResult:
    """The result of a phase.

    Attributes:
        means: Slot to mean over the clients that contributed.
        turns: The turns that count, in client order.
        failures: All failures, those that a retry made good too.
        dropped: Clients without a turn that counts.
    """

    means: Mapping[str, Mean]
    turns: tuple[TurnDone, ...]
    failures: tuple[Failure, ...]
    dropped: tuple[int, ...]

    @property
    def records(self) -> dict[int, Tensors]:
        """Client to records, in client order, for the clients that sent any."""
        return {turn.client: unpack(turn.records) for turn in self.turns if turn.records.fields}

    @property
    def states(self) -> dict[int, Handle | None]:
        """Client to what it keeps for its next turn."""
        return {turn.client: turn.state for turn in self.turns}


def run_phase(
    backend: Backend,
    order: Order,
    run: PhaseRun,
    pipeline: Pipeline,
    faults: FaultsConfig,
    *,
    watch: Callable[[Event], None],
    abandoned: Callable[[Sequence[Failure]], None] = lambda failures: None,
) -> PhaseResult:
    """Run every turn of a phase, failed ones again where the policy says so, and aggregate.

    Args:
        backend: Runs the turns.
        order: The phase, its slots and turns.
        run: The same phase, as the stages of the aggregation see it.
        pipeline: The aggregation.
        faults: What to do about clients that fail.
        watch: Called with every event, for progress.
        abandoned: Told of all failures if the phase cannot be completed.

    Raises:
        ConfigError: If every client refuses the config.
        RunError: If a client fails under `fail`, or fewer than `min_participation` succeed.
    """
    gather = _Gather(backend, order, faults, watch, ExactMeans(dict(order.layouts)))
    try:
        gather.run(order.turns)
        pipeline.collect(run, gather)
        gather.check_policy()
    except InterruptedRunError:
        raise  # the phase runs again, and so do those that failed
    except CoterieError:
        gather.note_failed("the phase failed")
        abandoned(gather.failures)
        raise
    gather.note_failed("dropped from the phase")
    turns = tuple(gather.done[client] for client in sorted(gather.done))
    means = {**pipeline.total(run, gather.sums), **pipeline.join(run, _whole(turns, backend))}
    return PhaseResult(
        means=means,
        # Without their updates, which the object store would then hold for another phase.
        turns=tuple(replace(turn, updates={}) for turn in turns),
        failures=tuple(gather.failures),
        dropped=tuple(sorted(gather.failed)),
    )


def _whole(
    turns: Sequence[TurnDone], backend: Backend
) -> dict[str, Callable[[], Sequence[Tensors]]]:
    """Slot to what reads the updates that came one by one, for one slot at a time."""
    handles: dict[str, list[Handle]] = {}
    for turn in turns:
        for slot, handle in turn.updates.items():
            handles.setdefault(slot, []).append(handle)

    def read(given: Sequence[Handle]) -> list[Tensors]:
        return [unpack(backend.fetch(handle)) for handle in given]

    return {slot: partial(read, given) for slot, given in handles.items()}


@dataclass
class _Gather:
    """Holds a call's turns back until its sums arrive, so that a lost call leaves no trace.

    It is the `Gathering` of the aggregation's stages.
    """

    backend: Backend
    order: Order
    faults: FaultsConfig
    watch: Callable[[Event], None]
    sums: ExactMeans
    done: dict[int, TurnDone] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    failures: list[Failure] = field(default_factory=list)
    traced: bool = False  # whether a failed turn has a traceback, for the log
    calls: dict[int, frozenset[int]] = field(default_factory=dict)
    _staged: dict[int, list[TurnDone | TurnFailed]] = field(default_factory=dict)

    @property
    def retries(self) -> bool:
        """Whether a client that has failed has a second try."""
        return self.faults.on_client_failure == "retry"

    def run(self, turns: Sequence[Turn]) -> None:
        """Run turns, and failed ones once more where the policy says so; then apply the policy."""
        pending = tuple(turns)
        for attempt in range(2 if self.retries else 1):
            if attempt:
                for turn in sorted(pending, key=lambda turn: turn.client):
                    self.note(turn.client, self.failed[turn.client], "retried")
            for event in self.backend.execute(replace(self.order, turns=pending)):
                self._take(event)
                self.watch(event)
            pending = tuple(turn for turn in turns if turn.client not in self.done)
            if not pending:
                break
            for turn in pending:  # a turn without any event is a failure too
                self.failed.setdefault(turn.client, "its call ended without an answer")
        self.check_policy()

    def run_again(self, clients: Collection[int]) -> None:
        """Run these clients' turns again, if there are any; then apply the policy."""
        if turns := [turn for turn in self.order.turns if turn.client in clients]:
            self.run(turns)
        else:
            self.check_policy()

    def exchange(self, stage: str, question: str, messages: Mapping[int, Any]) -> dict[int, Any]:
        """Ask a stage in the processes of these calls."""
        return self.backend.exchange(stage, question, messages)

    def lose(self, calls: Mapping[int, str], lost: str) -> dict[int, str]:
        """Forget the turns of calls; return each of their clients with why it has failed."""
        found: dict[int, str] = {}
        for call, why in calls.items():
            clients = self.calls.pop(call)
            # Of several clients, nobody knows which one hangs.
            found |= dict.fromkeys(clients, why if why and len(clients) == 1 else lost)
        for client in found:
            del self.done[client]
        self.failed |= found
        return found

    def count(self, key: str, up: Mapping[int, int], down: Mapping[int, int]) -> None:
        """Count bytes under a key with the clients' turns."""
        for client, turn in self.done.items():
            self.done[client] = replace(
                turn,
                bytes_up={**turn.bytes_up, key: up.get(client, 0)},
                bytes_down={**turn.bytes_down, key: down.get(client, 0)},
            )

    def note_failed(self, remedy: str) -> None:
        """Record the failure of each client without a turn that counts."""
        for client, message in sorted(self.failed.items()):
            self.note(client, message, remedy)

    def note(self, client: int | None, message: str, remedy: str) -> None:
        """Record a failure."""
        self.failures.append(
            Failure(
                round=self.order.phase.round,
                phase=self.order.phase.name,
                client=client,
                message=message,
                remedy=remedy,
            )
        )

    def _take(self, event: Event) -> None:
        if isinstance(event, TurnDone | TurnFailed):
            self._staged.setdefault(event.call, []).append(event)
        elif isinstance(event, CallLost):
            self._staged.pop(event.call, None)
            if event.client is None:
                self.note(None, event.message, "replaced, its clients run again")
            else:
                self.failed[event.client] = event.message
        elif isinstance(event, CallDone):
            self.sums.merge(event.lanes)
            turns = self._staged.pop(event.call, [])
            if done := frozenset(turn.client for turn in turns if isinstance(turn, TurnDone)):
                self.calls[event.call] = done
            for turn in turns:
                self._count(turn)

    def _count(self, turn: TurnDone | TurnFailed) -> None:
        self.refused.discard(turn.client)
        if isinstance(turn, TurnDone):
            self.done[turn.client] = turn
            self.failed.pop(turn.client, None)
            return
        self.failed[turn.client] = turn.message
        self.traced |= bool(turn.trace)
        if turn.refused:
            self.refused.add(turn.client)

    def check_policy(self) -> None:
        """Raise if a client must not fail, or if too few have succeeded."""
        faults, number = self.faults, self.order.phase.round
        if self.failed and not self.done and self.refused == self.failed.keys():
            raise ConfigError(self.failed[min(self.refused)])
        see = f" see {FAILURES} in the run's folder," if self.traced else ""
        for client, message in sorted(self.failed.items()):
            if faults.on_client_failure == "fail":
                raise RunError(
                    f"Client {client} failed in round {number} ({message});{see} "
                    "mend its data, or set faults.on_client_failure=drop."
                )
        asked = len(self.order.turns)
        if len(self.done) / max(1, asked) < faults.min_participation:
            first = next(iter(self.failed.values()), "no reason known")
            raise RunError(
                f"Round {number}: {len(self.done)} of {asked} clients "
                f"succeeded, under faults.min_participation={faults.min_participation} "
                f"(first failure: {first});{see} mend what fails, or lower it, and go on with "
                "resume=true."
            )
