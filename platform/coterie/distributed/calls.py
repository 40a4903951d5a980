"""Streaming calls to actors: what each carries, how its events are read, who gets which turns."""

import time
from collections.abc import Mapping, Sequence
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

from coterie.distributed.actors import ObjectKey, Report
from coterie.execution.events import Event, Handle, Order, Turn, TurnDone, TurnStarted

LOST = (RayActorError, ObjectLostError, OutOfMemoryError)
"""What a call raises when its actor, or the node of its actor, is gone."""


Placed = list[tuple[Any, tuple[Turn, ...]]]
"""Actors and the turns that each is to run."""


@dataclass
class Call:
    """A streaming call under way.

    Attributes:
        id: Its number.
        actor: The actor's handle.
        order: What it carries out.
        client: The client whose turn has begun, where turns have a time limit.
        since: When it began, by the monotonic clock.
    """

    id: int
    actor: Any
    order: Order
    client: int | None = None
    since: float = 0.0

    def note(self, events: Sequence[Event]) -> None:
        """Note whose turn it is."""
        last = events[-1]
        self.client = last.client if isinstance(last, TurnStarted) else None
        self.since = time.monotonic()

    def runs_for(self) -> float:
        """Seconds since the present turn began; 0 where that is not known."""
        return 0.0 if self.client is None else time.monotonic() - self.since


def pack_longest_first(turns: Sequence[Turn], actors: int) -> list[tuple[Turn, ...]]:
    """Spread turns over actors so that all end at about the same time: longest to least loaded."""
    shares: list[list[Turn]] = [[] for _ in range(actors)]
    loads = [0] * actors
    for turn in sorted(turns, key=lambda turn: (-turn.size, turn.client)):
        actor = loads.index(min(loads))
        shares[actor].append(turn)
        loads[actor] += max(1, turn.size)
    return [tuple(share) for share in shares]


def read_events(stream: Any) -> list[Event]:
    """The next report's events, with references to the objects that follow it in the stream.

    Raises:
        Exception: What the actor raised, or one of `LOST`.
    """
    report: Report = fetch(next(stream))
    handles = {key: next(stream) for key in report.objects}
    return [_attach(event, handles) for event in report.events]


def fetch(reference: Any) -> Any:
    """What a reference refers to.

    Raises:
        Exception: What the actor raised, as it was there, or one of `LOST`.
    """
    try:
        return ray.get(reference)
    except RayTaskError as error:
        raise error.cause from None


def node_died(error: BaseException) -> bool:
    """Whether a call was lost with its node: then many are, and no actor is to blame."""
    # An actor is unavailable first, for some seconds, until Ray takes its node for dead.
    return isinstance(error, ActorUnavailableError) or "node has died" in str(error)


def why_lost(error: BaseException) -> str:
    """A few words on why a call was lost."""
    if node_died(error):
        return "its node cannot be reached"
    if isinstance(error, OutOfMemoryError) or "memory pressure" in str(error):
        return "out of memory"
    return type(error).__name__


def _attach(event: Event, handles: Mapping[ObjectKey, Handle]) -> Event:
    if not isinstance(event, TurnDone):
        return event
    own = [(key, ref) for (client, key), ref in handles.items() if client == event.client]
    mail = {key: ref for key, ref in own if isinstance(key, int)}
    updates = {key: ref for key, ref in own if isinstance(key, str)}
    return replace(event, state=handles.get((event.client, None)), mail=mail, updates=updates)
