"""A run's state as a JSON record and tensor files, written and read; loading runs no code."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, NotRequired

from annotated_types import Len
from pydantic import NonNegativeFloat, NonNegativeInt, TypeAdapter
from safetensors.torch import load_file, save_file
from torch import Tensor
from typing_extensions import TypedDict

from coterie.checkpoints.client_rows import COLUMNS, Row, joined, read_rows, split
from coterie.checkpoints.integrity import DamagedError
from coterie.contract.phase import ServerState, Slots
from coterie.contract.tensor_spec import DTYPES
from coterie.execution.backend import Backend
from coterie.execution.events import Handle
from coterie.execution.packing import pack, unpack
from coterie.rounds.accounts import ClientAccount
from coterie.rounds.state import Ledger, RunState

_LEDGER = ("versions", "received")
"""The parts of a record about clients that belong to the ledger."""

Key = tuple[str | int, ...]
"""A tensor's key in a file, such as (client, "target.encoder.weight")."""


class _Ledger(TypedDict):
    """The types of the ledger's fields in a record."""

    versions: dict[str, dict[str, str]]
    received: dict[str, NonNegativeInt]
    down: NonNegativeInt
    up: NonNegativeInt
    peer: NonNegativeInt
    evaluation: NonNegativeInt
    items: dict[str, NonNegativeInt]


class _Account(TypedDict):
    """The types of a client account's fields in a record."""

    tasks: NonNegativeInt
    failures: NonNegativeInt
    loss: float | None
    seconds: NonNegativeFloat
    up: NonNegativeInt
    peer: NonNegativeInt


class _Tracking(TypedDict, total=False):
    """The types of the tracking fields in a record."""

    offset: NonNegativeInt
    phases: NonNegativeInt
    round: int
    step: int


class _Data(TypedDict):
    """The types of the data fingerprint's fields in a record."""

    shape: list[NonNegativeInt]
    clients: list[str]
    sizes: list[NonNegativeInt]
    classes: list[str]
    all: str
    contents: str
    labels: NotRequired[str]
    test: NotRequired[str]
    split: NotRequired[str]


class _Record(TypedDict):
    """The types of a record's fields; other checks are made where the fields are read."""

    round: NonNegativeInt
    step: NonNegativeInt
    phases: NonNegativeInt
    dropped: NonNegativeInt
    metadata: dict[str, Any]
    slots: list[str]
    stages: list[str]
    clients: dict[str, str]
    packs: list[str]
    rows: list[str]
    peer_messages: list[Annotated[list[int], Len(2, 2)]]
    failures: list[str]
    simulated: dict[str, NonNegativeInt]
    best: float | None
    stopped: NonNegativeInt | None
    accounts: dict[str, _Account]
    counts: dict[str, NonNegativeInt]
    ledger: _Ledger
    tracking: _Tracking
    config: dict[str, Any]
    data: NotRequired[_Data]
    files: dict[str, str]


_RECORD = TypeAdapter(_Record)


def check_record(record: Mapping[str, Any]) -> None:
    """Check the types in a record that was read.

    Raises:
        ValueError: If a part is missing or of another kind.
    """
    _RECORD.validate_python(record, strict=True)
    data = record.get("data")
    if data and len(data["clients"]) != len(data["sizes"]):
        raise ValueError(f"{len(data['sizes'])} sizes of {len(data['clients'])} clients")


def state_record(state: RunState, rows: Mapping[int, Row]) -> dict[str, Any]:
    """Return a run's state without its tensors, and with the rows of these clients only."""
    of_clients = split(rows)
    by_client = {name: of_clients.pop(name) for name in _LEDGER}
    totals = {f.name: getattr(state.ledger, f.name) for f in fields(state.ledger)}
    return {
        "round": state.server.round,
        "step": state.server.step,
        "metadata": dict(state.server.metadata),
        # Names, because a slot or message without tensors is in no tensors file.
        "slots": sorted(state.server.slots),
        **of_clients,
        "peer_messages": [
            [to, sender]
            for to in sorted(state.peer_messages)
            for sender in sorted(state.peer_messages[to])
        ],
        "phases": state.phases,
        "failures": list(state.failures),
        "dropped": state.dropped,
        "stages": sorted(state.stages),
        "simulated": dict(state.simulated),
        "best": state.best,
        "stopped": state.stopped,
        "counts": dict(state.counts),
        "ledger": {**totals, **by_client},
    }


def with_rows(record: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a record with the rows of all its clients, some of which lie in files of this folder.

    Raises:
        DamagedError: If one of the files is missing, or its content has another digest.
    """
    ledger = record["ledger"]
    own = {name: (ledger if name in _LEDGER else record)[name] for name in COLUMNS}
    rows = joined(read_rows(folder, record["rows"]), own)
    by_client = {name: rows.pop(name) for name in _LEDGER}
    return {**record, **rows, "ledger": {**ledger, **by_client}}


def state_tensors(state: RunState, backend: Backend) -> tuple[dict[Key, Tensor], ...]:
    """Return the tensors of the server's slots, of stages, and of undelivered messages."""
    return _by_slot(state.server.slots), _by_slot(state.stages), _by_route(state, backend)


def restore(
    record: dict[str, Any],
    tensors: Sequence[Mapping[Key, Tensor]],
    states: dict[int, Handle],
    backend: Backend,
) -> RunState:
    """Build the run's state from its `state_record` and its `state_tensors`."""
    server, stages, peer_messages = tensors
    state = RunState(
        server=ServerState(
            round=record["round"],
            step=record["step"],
            metadata=record["metadata"],
            slots=group_slots(server, record["slots"]),
        ),
        states=states,
        ledger=_ledger(record["ledger"]),
        phases=record["phases"],
        failures=record["failures"],
        dropped=record["dropped"],
        best=record["best"],
        stopped=record["stopped"],
        counts=record["counts"],
        stages=dict(group_slots(stages, record["stages"])),
        simulated=Counter(record["simulated"]),
        accounts={int(c): ClientAccount(**own) for c, own in record["accounts"].items()},
    )
    for (recipient, sender), message in _group_peer_messages(
        peer_messages, record["peer_messages"]
    ).items():
        state.peer_messages.setdefault(recipient, {})[sender] = backend.store(pack(message))
    return state


def save_tensors(path: Path, tensors: Mapping[Key, Tensor]) -> None:
    """Write tensors to a safetensors file and sync it to disk; keys are stored as JSON lists."""
    # Copies, because two keys may share a tensor, which safetensors refuses to write.
    copies = {json.dumps(key): value.contiguous().clone() for key, value in tensors.items()}
    save_file(copies, path)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def load_tensors_file(path: Path) -> dict[Key, Tensor]:
    """Read what `save_tensors` wrote.

    Raises:
        DamagedError: If it holds numbers that PyTorch does not compute with.
    """
    tensors = load_file(path)
    if other := {value.dtype for value in tensors.values()} - DTYPES:
        raise DamagedError(f"{path.name} holds numbers of the type {other.pop()}")
    return {tuple(json.loads(key)): value for key, value in tensors.items()}


def _by_slot(slots: Slots) -> dict[Key, Tensor]:
    """Return the tensors of slots by (slot, name)."""
    return {(slot, name): t for slot, tensors in slots.items() for name, t in tensors.items()}


def _by_route(state: RunState, backend: Backend) -> dict[Key, Tensor]:
    """Return the tensors of undelivered messages by (recipient, sender, name)."""
    return {
        (recipient, sender, name): tensor
        for recipient, messages in sorted(state.peer_messages.items())
        for sender, handle in sorted(messages.items())
        for name, tensor in unpack(backend.fetch(handle)).items()
    }


def _ledger(record: dict[str, Any]) -> Ledger:
    of_clients = {
        name: {int(client): value for client, value in record[name].items()} for name in _LEDGER
    }
    return Ledger(**{**record, **of_clients})


def group_slots(
    tensors: Mapping[Key, Tensor], names: Iterable[str]
) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of a file by slot and name.

    A slot without tensors is among the names alone.
    """
    groups: dict[str, dict[str, Tensor]] = {name: {} for name in names}
    for (slot, name), tensor in tensors.items():
        groups[str(slot)][str(name)] = tensor
    return groups


def _group_peer_messages(
    tensors: Mapping[Key, Tensor], routes: Iterable[tuple[int, int]]
) -> dict[tuple[int, int], dict[str, Tensor]]:
    messages: dict[tuple[int, int], dict[str, Tensor]] = {(to, by): {} for to, by in routes}
    for (recipient, sender, name), tensor in tensors.items():
        messages[int(recipient), int(sender)][str(name)] = tensor
    return messages
