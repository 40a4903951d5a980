"""Messages between the round loop and a backend: requests down, events back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coterie.aggregation.exact import FixedPointSum, Layout
from coterie.contract.phase import Phase
from coterie.execution.packing import Packed

Handle = Any
"""A `Packed`, or a backend's reference to one."""


@dataclass(frozen=True, kw_only=True)
class ClientTask:
    """One client's task: its inputs besides the slots.

    Attributes:
        size: Its number of samples; backends start the longest tasks first.
        seed: Its seed for this task.
        state: What it kept from its last task, or None.
        peer_messages: Sender to message.
        work: Share of its local steps to do; under 1 for a straggler.
        stages: Stage of the aggregation to what it gives this client.
    """

    client: int
    size: int
    seed: int
    state: Handle | None = None
    peer_messages: Mapping[int, Handle] = field(default_factory=dict)
    work: float = 1.0
    stages: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PhaseRequest:
    """A phase to run.

    Attributes:
        phase: The phase, as the method declares it.
        slots: Slot to the tensors offered to every client.
        layouts: Slot to the layout of its contributions.
        key: A word that no other run of a phase has.
        stages: Stage of the aggregation to what it gives every client.
    """

    phase: Phase
    slots: Mapping[str, Handle]
    layouts: Mapping[str, Layout]
    tasks: tuple[ClientTask, ...]
    key: str = ""
    stages: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ClientResult:
    """A client's task succeeded; its contribution is in its call's sums or in `updates`.

    Attributes:
        call: The call to a process that ran the task.
        gathered: Its gathered tensors for the server.
        metrics: Scalars of its training.
        bytes_up: Slot or gathered tensor to bytes that it sent to the server.
        bytes_peer: Key to bytes that it sent to other clients.
        items_peer: Key to rows (samples, embeddings) that it sent to other clients.
        seconds: Wall-clock time of the task.
        state: What it keeps for its next task, or None.
        peer_messages: Recipient to message.
        updates: Slot to its contribution, where the server receives them one by one.
        note: What people should know of the task, in one printable line; "" if nothing.
        bytes_down: Key to bytes that it received besides the slots.
        smallest: Slot, "gathered/<key>" or "peer/<key>" to the fewest samples that a vector of it
            stands for; a slot that is not named stands for all samples of the client.
    """

    call: int
    client: int
    gathered: Packed
    metrics: Mapping[str, float]
    bytes_up: Mapping[str, int]
    bytes_peer: Mapping[str, int]
    seconds: float
    state: Handle | None = None
    peer_messages: Mapping[int, Handle] = field(default_factory=dict)
    items_peer: Mapping[str, int] = field(default_factory=dict)
    updates: Mapping[str, Handle] = field(default_factory=dict)
    note: str = ""
    bytes_down: Mapping[str, int] = field(default_factory=dict)
    smallest: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ClientFailed:
    """A client's task failed; nothing of it was summed.

    Attributes:
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
    """A call succeeded; its tasks count from now on.

    A stage may keep its sums in its process until `Backend.exchange`.

    Attributes:
        sums: Slot to its sums; empty if a stage keeps them.
        device: The name of what the tasks were computed on; "" if there were none.
    """

    call: int
    sums: Mapping[str, FixedPointSum]
    device: str = ""


@dataclass(frozen=True, kw_only=True)
class CallLost:
    """The process of a call died; the call's tasks run again elsewhere, from the same states.

    Attributes:
        client: The client that hung, if the process was ended for that, or in whose turns it died
            several times; this client does not run again.
    """

    call: int
    message: str
    client: int | None = None


@dataclass(frozen=True, kw_only=True)
class ClientStarted:
    """A client's task begins; sent only where tasks have a time limit."""

    call: int
    client: int


Event = ClientStarted | ClientResult | ClientFailed | CallDone | CallLost
