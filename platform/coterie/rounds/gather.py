"""Collects what a phase gives and decides about failed clients: policy apart from execution."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from coterie.config.schema import FaultsConfig
from coterie.contract.phase import Mean, Phase, Tensors
from coterie.errors import RunError
from coterie.execution.backend import Backend
from coterie.execution.events import CallDone, CallLost, Event, Handle, Order, TurnDone, TurnFailed
from coterie.execution.exact import ExactMeans
from coterie.execution.packing import unpack


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A client or an actor that failed."""

    round: int
    phase: str
    client: int | None
    message: str
    remedy: str

    def __str__(self) -> str:
        """One sentence."""
        who = "an actor" if self.client is None else f"client {self.client}"
        return f"round {self.round}, {self.phase}: {who} failed ({self.message}); {self.remedy}"


@dataclass(frozen=True, kw_only=True)
class PhaseResult:
    """What a phase gave.

    Attributes:
        means: Slot to mean over the clients that contributed.
        turns: The turns that count, in client order.
        failures: What failed on the way, whether it was made good or not.
        dropped: Clients that are missing from the means.
    """

    means: Mapping[str, Mean]
    turns: tuple[TurnDone, ...]
    failures: tuple[Failure, ...]
    dropped: tuple[int, ...]

    @property
    def records(self) -> dict[int, Tensors]:
        """Client to records, in client order, of the clients that sent any."""
        return {turn.client: unpack(turn.records) for turn in self.turns if turn.records.fields}

    @property
    def states(self) -> dict[int, Handle | None]:
        """Client to what it keeps from now on."""
        return {turn.client: turn.state for turn in self.turns}


@dataclass
class Gather:
    """Stages a call's turns until its sums are in, so that a lost call leaves no trace."""

    phase: Phase
    means: ExactMeans
    done: dict[int, TurnDone] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    _staged: dict[int, list[TurnDone | TurnFailed]] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, TurnDone | TurnFailed):
            self._staged.setdefault(event.call, []).append(event)
        elif isinstance(event, CallLost):
            self._staged.pop(event.call, None)
            if event.client is None:
                self.note(None, event.message, "replaced, its clients run again")
            else:
                self.failed[event.client] = event.message
        elif isinstance(event, CallDone):
            self.means.merge(event.lanes)
            for turn in self._staged.pop(event.call, []):
                self._count(turn)

    def note(self, client: int | None, message: str, remedy: str) -> None:
        """Remember a failure."""
        self.failures.append(
            Failure(
                round=self.phase.round,
                phase=self.phase.name,
                client=client,
                message=message,
                remedy=remedy,
            )
        )

    def _count(self, turn: TurnDone | TurnFailed) -> None:
        if isinstance(turn, TurnDone):
            self.done[turn.client] = turn
            self.failed.pop(turn.client, None)
        else:
            self.failed[turn.client] = turn.message


def run_phase(
    backend: Backend, order: Order, faults: FaultsConfig, watch: Callable[[Event], None]
) -> PhaseResult:
    """Carry out a phase: run every turn, again where the policy says so.

    Args:
        backend: Where the turns run.
        order: The phase, its slots and turns.
        faults: What to do about clients that fail.
        watch: Sees every event, for progress.

    Raises:
        RunError: If a client fails under `fail`, or too few are left.
    """
    gather = Gather(order.phase, ExactMeans(dict(order.layouts)))
    pending = order.turns
    for attempt in range(2 if faults.on_client_failure == "retry" else 1):
        if attempt:
            for client, message in sorted(gather.failed.items()):
                gather.note(client, message, "retried")
        for event in backend.execute(replace(order, turns=pending)):
            gather.take(event)
            watch(event)
        pending = tuple(turn for turn in order.turns if turn.client not in gather.done)
        if not pending:
            break
        for turn in pending:  # no backend may forget a turn; if one does, it is no secret
            gather.failed.setdefault(turn.client, "its call ended without an answer")
    _apply_policy(gather, order, faults)
    return PhaseResult(
        means=gather.means.result(),
        turns=tuple(gather.done[client] for client in sorted(gather.done)),
        failures=tuple(gather.failures),
        dropped=tuple(sorted(gather.failed)),
    )


def _apply_policy(gather: Gather, order: Order, faults: FaultsConfig) -> None:
    for client, message in sorted(gather.failed.items()):
        if faults.on_client_failure == "fail":
            raise RunError(
                f"Client {client} failed in round {order.phase.round} ({message}); "
                "mend its data, or set faults.on_client_failure=drop."
            )
        gather.note(client, message, "dropped from the phase")
    share = len(gather.done) / max(1, len(order.turns))
    if share < faults.min_participation:
        first = next(iter(gather.failed.values()), "no reason known")
        raise RunError(
            f"Round {order.phase.round}: {len(gather.done)} of {len(order.turns)} clients "
            f"succeeded, under faults.min_participation={faults.min_participation} "
            f"(first failure: {first}); mend what fails, or lower it, and go on with resume=true."
        )
