"""Collects a phase's events and applies the failure policy: policy is apart from execution."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from coterie.config.schema import FaultsConfig
from coterie.contract.phase import Mean, Phase, Tensors
from coterie.errors import ConfigError, CoterieError, InterruptedRunError, RunError
from coterie.execution.backend import Backend
from coterie.execution.events import CallDone, CallLost, Event, Handle, Order, TurnDone, TurnFailed
from coterie.execution.exact import ExactMeans
from coterie.execution.packing import unpack
from coterie.execution.secure_party import FEWEST
from coterie.rounds.failure_log import FAILURES
from coterie.rounds.secure_aggregation import Opened, open_sums, require

Join = Callable[[ExactMeans], Mapping[str, Mean]]

KEYS = "secure_aggregation"
"""Keys and shares in the counts of bytes."""
_LOST = "its process was lost with its masked sum"
_ATTEMPTS = 3
"""Attempts at opening masked sums; the last one goes on without clients that are lost."""


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
    faults: FaultsConfig,
    watch: Callable[[Event], None],
    join: Join = ExactMeans.result,
    *,
    abandoned: Callable[[Sequence[Failure]], None] = lambda failures: None,
) -> PhaseResult:
    """Run every turn of a phase, and failed ones again where the policy says so.

    Args:
        backend: Runs the turns.
        order: The phase, its slots and turns.
        faults: What to do about clients that fail.
        watch: Called with every event, for progress.
        join: Makes slots' means of the sums over all clients; under differential privacy with
            noise.
        abandoned: Told of all failures if the phase cannot be completed.

    Raises:
        ConfigError: If every client refuses the config.
        RunError: If a client fails under `fail`, or fewer than `min_participation` succeed.
    """
    gather = _Gather(order.phase, ExactMeans(dict(order.layouts)))
    try:
        _complete(backend, gather, order, faults, watch)
    except InterruptedRunError:
        raise  # the phase runs again, and so do those that failed
    except CoterieError:
        gather.note_failed("the phase failed")
        abandoned(gather.failures)
        raise
    gather.note_failed("dropped from the phase")
    return PhaseResult(
        means=join(gather.means),
        turns=tuple(gather.done[client] for client in sorted(gather.done)),
        failures=tuple(gather.failures),
        dropped=tuple(sorted(gather.failed)),
    )


def _complete(
    backend: Backend,
    gather: "_Gather",
    order: Order,
    faults: FaultsConfig,
    watch: Callable[[Event], None],
) -> None:
    """Run every turn, and open the sums if they are masked."""
    run = partial(_run_turns, backend, gather, faults, watch)
    if order.session:
        require(order, FEWEST, len(order.turns), len(order.turns))
    run(order)
    _check_policy(gather, order, faults)
    if order.session and gather.done:
        _open(backend, gather, order, faults, run)
        _check_policy(gather, order, faults)


def _run_turns(
    backend: Backend,
    gather: "_Gather",
    faults: FaultsConfig,
    watch: Callable[[Event], None],
    order: Order,
) -> None:
    """Run the order's turns, and failed ones once more where the policy says so."""
    pending = order.turns
    for attempt in range(2 if faults.on_client_failure == "retry" else 1):
        if attempt:
            for turn in sorted(pending, key=lambda turn: turn.client):
                gather.note(turn.client, gather.failed[turn.client], "retried")
        for event in backend.execute(replace(order, turns=pending)):
            gather.take(event)
            watch(event)
        pending = tuple(turn for turn in order.turns if turn.client not in gather.done)
        if not pending:
            break
        for turn in pending:  # a turn without any event is a failure too
            gather.failed.setdefault(turn.client, "its call ended without an answer")


def _open(
    backend: Backend,
    gather: "_Gather",
    order: Order,
    faults: FaultsConfig,
    run: Callable[[Order], None],
) -> None:
    """Open the masked sums; clients of a process that is lost before run again.

    A client that has a process to itself and takes too long has failed, and the policy decides.
    """
    retried: set[int] = set()
    for attempt in range(1, _ATTEMPTS + 1):
        opened = open_sums(backend, order, gather.calls, last=attempt == _ATTEMPTS)
        lost = gather.lose(opened.lost)
        if opened.lanes is not None:
            gather.means.merge(opened.lanes)
            gather.count_keys(opened)
            return
        late = {client: why for client, why in lost.items() if why != _LOST}
        again = set(late) - retried if faults.on_client_failure == "retry" else set[int]()
        for client in sorted(again):
            gather.note(client, late[client], "retried")
        retried |= again
        if gone := lost.keys() - late.keys():
            gather.note(None, _LOST, "replaced, its clients run again")
        if turns := tuple(turn for turn in order.turns if turn.client in again | gone):
            run(replace(order, turns=turns))
        _check_policy(gather, order, faults)


@dataclass
class _Gather:
    """Holds a call's turns back until its sums arrive, so that a lost call leaves no trace."""

    phase: Phase
    means: ExactMeans
    done: dict[int, TurnDone] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    failures: list[Failure] = field(default_factory=list)
    traced: bool = False  # whether a failed turn has a traceback, for the log
    calls: dict[int, frozenset[int]] = field(default_factory=dict)  # clients of masked sums
    _staged: dict[int, list[TurnDone | TurnFailed]] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        """Process one event."""
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
            turns = self._staged.pop(event.call, [])
            if done := frozenset(turn.client for turn in turns if isinstance(turn, TurnDone)):
                self.calls[event.call] = done
            for turn in turns:
                self._count(turn)

    def lose(self, calls: Mapping[int, str]) -> dict[int, str]:
        """Forget the turns of calls whose masked sums are lost.

        Args:
            calls: Call to why it was ended, "" if its process is lost.

        Returns:
            Client to why it has failed.
        """
        lost: dict[int, str] = {}
        for call, why in calls.items():
            clients = self.calls.pop(call)
            # Of several clients, nobody knows which one hangs.
            lost |= dict.fromkeys(clients, why if why and len(clients) == 1 else _LOST)
        for client in lost:
            del self.done[client]
        self.failed |= lost
        return lost

    def count_keys(self, opened: Opened) -> None:
        """Count the bytes of keys and shares with their clients' turns."""
        for client, turn in self.done.items():
            up = {**turn.bytes_up, KEYS: opened.up.get(client, 0)}
            self.done[client] = replace(
                turn, bytes_up=up, bytes_down={KEYS: opened.down.get(client, 0)}
            )

    def note_failed(self, remedy: str) -> None:
        """Record the failure of each client without a turn that counts."""
        for client, message in sorted(self.failed.items()):
            self.note(client, message, remedy)

    def note(self, client: int | None, message: str, remedy: str) -> None:
        """Record a failure."""
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
        self.refused.discard(turn.client)
        if isinstance(turn, TurnDone):
            self.done[turn.client] = turn
            self.failed.pop(turn.client, None)
            return
        self.failed[turn.client] = turn.message
        self.traced |= bool(turn.trace)
        if turn.refused:
            self.refused.add(turn.client)


def _check_policy(gather: _Gather, order: Order, faults: FaultsConfig) -> None:
    if gather.failed and not gather.done and gather.refused == gather.failed.keys():
        raise ConfigError(gather.failed[min(gather.refused)])
    see = f" see {FAILURES} in the run's folder," if gather.traced else ""
    for client, message in sorted(gather.failed.items()):
        if faults.on_client_failure == "fail":
            raise RunError(
                f"Client {client} failed in round {order.phase.round} ({message});{see} "
                "mend its data, or set faults.on_client_failure=drop."
            )
    share = len(gather.done) / max(1, len(order.turns))
    if share < faults.min_participation:
        first = next(iter(gather.failed.values()), "no reason known")
        raise RunError(
            f"Round {order.phase.round}: {len(gather.done)} of {len(order.turns)} clients "
            f"succeeded, under faults.min_participation={faults.min_participation} "
            f"(first failure: {first});{see} mend what fails, or lower it, and go on with "
            "resume=true."
        )
