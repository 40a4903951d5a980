"""What the backend is told to do, and what it reports while it does it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coterie.config.aggregation import AggregationRule
from coterie.contract.phase import Phase
from coterie.execution.exact import Lanes
from coterie.execution.packing import Packed

Handle = Any
"""A `Packed`, or a backend's reference to one that this process need not read."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One client's turn: what it is given besides the slots.

    Attributes:
        client: Its number.
        size: Its samples, by which longer turns are handed out first.
        seed: Its seed for this turn.
        state: What it kept, or None.
        mail: Sender to message.
        work: The part of its local steps that it does; under 1 for a straggler.
    """

    client: int
    size: int
    seed: int
    state: Handle | None = None
    mail: Mapping[int, Handle] = field(default_factory=dict)
    work: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Order:
    """A phase to carry out: the same slots for every turn, and one rule to join what comes back."""

    phase: Phase
    slots: Mapping[str, Handle]
    layouts: Mapping[str, Any]
    turns: tuple[Turn, ...]
    rule: AggregationRule = "weighted"


@dataclass(frozen=True, kw_only=True)
class TurnDone:
    """A client finished; its contribution is in its call's sums, or in `updates`.

    Attributes:
        call: The call to an actor that the turn was part of.
        client: The client.
        records: Its records for the server.
        metrics: Scalars of its training.
        bytes_up: Slot or record to bytes that it sent.
        bytes_peer: Bytes that it sent to other clients.
        items_peer: Rows of what it sent to other clients: samples, embeddings.
        seconds: How long its turn took.
        state: What it keeps, or None.
        mail: Recipient to message.
        updates: Slot to its contribution, only where the rule needs each one by itself.
    """

    call: int
    client: int
    records: Packed
    metrics: Mapping[str, float]
    bytes_up: Mapping[str, int]
    bytes_peer: Mapping[str, int]
    seconds: float
    state: Handle | None = None
    mail: Mapping[int, Handle] = field(default_factory=dict)
    items_peer: Mapping[str, int] = field(default_factory=dict)
    updates: Mapping[str, Handle] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TurnFailed:
    """A client failed by itself; nothing of it was summed."""

    call: int
    client: int
    message: str


@dataclass(frozen=True, kw_only=True)
class CallDone:
    """A call ended well; only now do its turns count."""

    call: int
    lanes: Mapping[str, Lanes]


@dataclass(frozen=True, kw_only=True)
class CallLost:
    """The actor died; all of the call's turns run again elsewhere, from the same state.

    Attributes:
        call: The call.
        message: Why.
        client: The client that hung, if that is why the actor was ended; it does not run again
            with the others.
    """

    call: int
    message: str
    client: int | None = None


@dataclass(frozen=True, kw_only=True)
class TurnStarted:
    """A client's turn begins; only told where turns have a time limit."""

    call: int
    client: int


Event = TurnStarted | TurnDone | TurnFailed | CallDone | CallLost
