"""Messages between the round loop and a backend: orders down, events back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coterie.aggregation.exact import Lanes, Layout
from coterie.contract.phase import Phase
from coterie.execution.packing import Packed

Handle = Any
"""A `Packed`, or a backend's reference to one."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One client's turn: its inputs besides the slots.

    Attributes:
        client: The client's number.
        size: Its number of samples; backends start the longest turns first.
        seed: Its seed for this turn.
        state: What it kept from its last turn, or None.
        mail: Sender to message.
        work: Share of its local steps to do; under 1 for a straggler.
        stages: Stage of the aggregation to what it gives this client.
    """

    client: int
    size: int
    seed: int
    state: Handle | None = None
    mail: Mapping[int, Handle] = field(default_factory=dict)
    work: float = 1.0
    stages: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Order:
    """A phase to run.

    Attributes:
        phase: The phase, as the method declares it.
        slots: Slot to the tensors offered to every client.
        layouts: Slot to the layout of its contributions.
        turns: The clients' turns.
        key: A word that no other run of a phase has.
        stages: Stage of the aggregation to what it gives every client.
    """

    phase: Phase
    slots: Mapping[str, Handle]
    layouts: Mapping[str, Layout]
    turns: tuple[Turn, ...]
    key: str = ""
    stages: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TurnDone:
    """A client's turn succeeded; its contribution is in its call's sums or in `updates`.

    Attributes:
        call: The call to a process that ran the turn.
        client: The client.
        records: Its records for the server.
        metrics: Scalars of its training.
        bytes_up: Slot or record to bytes that it sent to the server.
        bytes_peer: Key to bytes that it sent to other clients.
        items_peer: Key to rows (samples, embeddings) that it sent to other clients.
        seconds: Wall-clock time of the turn.
        state: What it keeps for its next turn, or None.
        mail: Recipient to message.
        updates: Slot to its contribution, where the server receives them one by one.
        note: What people should know of the turn, in one printable line; "" if nothing.
        bytes_down: Key to bytes that it received besides the slots.
        smallest: Slot, "records/<key>" or "mail/<key>" to the fewest samples that a vector of it
            stands for; a slot that is not named stands for all samples of the client.
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
    note: str = ""
    bytes_down: Mapping[str, int] = field(default_factory=dict)
    smallest: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TurnFailed:
    """A client's turn failed; nothing of it was summed.

    Attributes:
        call: The call.
        client: The client.
        message: Why, in one printable line.
        refused: Whether it refused the config, which ends the run if every client does.
        trace: Where it failed, see `trace_of`; "" if that says nothing.
    """

    call: int
    client: int
    message: str
    refused: bool = False
    trace: str = ""


@dataclass(frozen=True, kw_only=True)
class CallDone:
    """A call succeeded; its turns count from now on.

    A stage may keep its sums in its process until `Backend.exchange`.

    Attributes:
        call: The call.
        lanes: Slot to its sums; empty if a stage keeps them.
        device: The name of what the turns were computed on; "" if there were none.
    """

    call: int
    lanes: Mapping[str, Lanes]
    device: str = ""


@dataclass(frozen=True, kw_only=True)
class CallLost:
    """The process of a call died; the call's turns run again elsewhere, from the same states.

    Attributes:
        call: The call.
        message: Why it died.
        client: The client that hung, if the process was ended for that, or in whose turns it died
            several times; this client does not run again.
    """

    call: int
    message: str
    client: int | None = None


@dataclass(frozen=True, kw_only=True)
class TurnStarted:
    """A client's turn begins; sent only where turns have a time limit."""

    call: int
    client: int


Event = TurnStarted | TurnDone | TurnFailed | CallDone | CallLost
