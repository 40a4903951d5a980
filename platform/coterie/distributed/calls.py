"""Streaming calls to actors: their tasks, their events, and why a call was lost."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import (
    ActorUnavailableError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayTaskError,
)

from coterie.aggregation.limits import Limits
from coterie.distributed.actors import ObjectKey, Report
from coterie.distributed.event_checks import StrangeEventError, check_events
from coterie.execution.events import (
    ClientResult,
    ClientStarted,
    ClientTask,
    Event,
    Handle,
    PhaseRequest,
)

LOST = (RayActorError, ObjectLostError, OutOfMemoryError, StrangeEventError)
"""Errors of a call whose actor or node is gone, or whose actor sends what no task gives."""
OUT_OF_MEMORY = "out of memory"

_POLL_S = 0.2
_BLAMED = 2
"""Deaths in turns of one client after which it is to blame; one may be chance."""

Placed = list[tuple[Any, tuple[ClientTask, ...]]]
"""Actors, each with the tasks that it runs."""


@dataclass
class Call:
    """A streaming call under way.

    Attributes:
        request: The phase with this actor's share of the tasks.
        client: The client whose task is under way, if known.
        since: Start of that task, by the monotonic clock.
        alone: Whether it has one task because an actor died that had it: this tells whose fault a
            further death is.
        rest: The tasks of which the same actor then runs the next.
    """

    id: int
    actor: Any
    request: PhaseRequest
    client: int | None = None
    since: float = 0.0
    alone: bool = False
    rest: tuple[ClientTask, ...] = ()

    @property
    def tasks(self) -> tuple[ClientTask, ...]:
        """All tasks that are still to be run, including those in `rest`."""
        return (*self.request.tasks, *self.rest)

    def note(self, events: Sequence[Event]) -> None:
        """Note whose task is running."""
        last = events[-1]
        self.client = last.client if isinstance(last, ClientStarted) else None
        self.since = time.monotonic()

    def runs_for(self) -> float:
        """Return the seconds since the present task began; 0 if unknown."""
        return 0.0 if self.client is None else time.monotonic() - self.since


class Deaths:
    """The actors that died in a phase, and the clients whose tasks they were running.

    Attributes:
        unexplained: Deaths for which no client is to blame.
    """

    def __init__(self) -> None:
        self.unexplained = 0
        self._in_turns: Counter[int] = Counter()

    def culprit(self, call: Call) -> int | None:
        """Count the death of a call's actor, and return the client to blame, if one is."""
        self.unexplained += 1
        if not call.alone:
            return None
        client = call.request.tasks[0].client
        self._in_turns[client] += 1
        if self._in_turns[client] < _BLAMED:
            return None
        self.unexplained -= self._in_turns.pop(client)
        return client


def pack_longest_first(tasks: Sequence[ClientTask], actors: int) -> list[tuple[ClientTask, ...]]:
    """Distribute tasks over actors: the longest first, each to the least loaded actor."""
    shares: list[list[ClientTask]] = [[] for _ in range(actors)]
    loads = [0] * actors
    for task in sorted(tasks, key=lambda task: (-task.size, task.client)):
        actor = loads.index(min(loads))
        shares[actor].append(task)
        loads[actor] += max(1, task.size)
    return [tuple(share) for share in shares]


def in_turn(calls: Mapping[Any, Call], ready: Sequence[Any]) -> Iterator[Any]:
    """Yield the ready streams, but for each actor only the stream of its first call.

    Calls that replace a lost actor's wait behind its own: if it dies, the first was under way.
    """
    for stream in ready:
        call = calls[stream]
        own = {c.id: s for s, c in calls.items() if c.actor is call.actor} if call.alone else {}
        first = own[min(own)] if own else stream
        if first is stream or ray.wait([first], timeout=_POLL_S)[0]:
            yield first


def read_events(stream: Any, call: Call, keep: Callable[[Any], Handle]) -> list[Event]:
    """Read the next report's events, with references to the objects that follow in the stream.

    Args:
        stream: The call's stream.
        call: The call.
        keep: Makes a handle of a reference.

    Raises:
        Exception: The actor's error, or one of `LOST`.
    """
    report: Report = fetch(next(stream))
    limits = {task.client: task.stages.get(Limits.name) for task in call.request.tasks}
    check_events(report.events, call.id, limits, call.request.layouts)
    handles = {key: keep(next(stream)) for key in report.objects}
    return [_attach(event, handles) for event in report.events]


def fetch(reference: Any) -> Any:
    """Fetch a reference's object.

    Raises:
        Exception: The actor's error, unwrapped, or one of `LOST`.
    """
    try:
        return ray.get(reference)
    except RayTaskError as error:
        raise error.cause from None


def node_died(error: BaseException) -> bool:
    """Return whether a call was lost because its node died, so that no actor is to blame."""
    # For some seconds Ray reports an actor as unavailable, before it declares its node dead.
    return isinstance(error, ActorUnavailableError) or "node has died" in str(error)


def why_lost(error: BaseException) -> str:
    """Return a few words on why a call was lost."""
    if node_died(error):
        return "its node cannot be reached"
    if isinstance(error, StrangeEventError):
        return "it sent what no task gives"
    if isinstance(error, OutOfMemoryError) or "memory pressure" in str(error):
        return OUT_OF_MEMORY
    return type(error).__name__


def _attach(event: Event, handles: Mapping[ObjectKey, Handle]) -> Event:
    if not isinstance(event, ClientResult):
        return event
    own = [(key, ref) for (client, key), ref in handles.items() if client == event.client]
    peer_messages = {key: ref for key, ref in own if isinstance(key, int)}
    updates = {key: ref for key, ref in own if isinstance(key, str)}
    return replace(
        event, state=handles.get((event.client, None)), peer_messages=peer_messages, updates=updates
    )
