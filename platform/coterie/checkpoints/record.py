"""A run's state as JSON and named tensors, and back."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from torch import Tensor

from coterie.checkpoints.tensors_file import Key
from coterie.contract.phase import ServerState
from coterie.engine.backend import Backend
from coterie.engine.events import Handle
from coterie.engine.ledger import Ledger
from coterie.engine.loop import RunState
from coterie.engine.packing import pack, unpack


def server_tensors(server: ServerState) -> dict[Key, Tensor]:
    """The server's slots: (slot, name) to tensor."""
    return {(s, name): t for s, tensors in server.slots.items() for name, t in tensors.items()}


def mail_tensors(state: RunState, backend: Backend) -> dict[Key, Tensor]:
    """The mail in flight: (recipient, sender, name) to tensor."""
    return {
        (recipient, sender, name): tensor
        for recipient, letters in sorted(state.mail.items())
        for sender, handle in sorted(letters.items())
        for name, tensor in unpack(backend.fetch(handle)).items()
    }


def describe(state: RunState, digests: Mapping[int, str]) -> dict[str, Any]:
    """All of a run's state but its tensors; of each client's, the digest."""
    return {
        "round": state.server.round,
        "step": state.server.step,
        "facts": dict(state.server.facts),
        # By name, for a slot or a message without tensors is in no tensors file.
        "slots": sorted(state.server.slots),
        "clients": {str(client): digest for client, digest in digests.items()},
        "mail": [[to, sender] for to in sorted(state.mail) for sender in sorted(state.mail[to])],
        "phases": state.phases,
        "failures": list(state.failures),
        "dropped": state.dropped,
        "best": state.best,
        "ledger": asdict(state.ledger),
    }


def restore(
    record: dict[str, Any],
    server: Mapping[Key, Tensor],
    mail: Mapping[Key, Tensor],
    states: dict[int, Handle],
    backend: Backend,
) -> RunState:
    """The run's state from what `describe`, `server_tensors` and `mail_tensors` gave."""
    slots = _group(server, record["slots"])
    state = RunState(
        server=ServerState(
            round=record["round"],
            step=record["step"],
            facts=record["facts"],
            slots={str(slot): tensors for slot, tensors in slots.items()},
        ),
        states=states,
        ledger=_ledger(record["ledger"]),
        phases=record["phases"],
        failures=record["failures"],
        dropped=record["dropped"],
        best=record["best"],
    )
    for (recipient, sender), tensors in _group_mail(mail, record["mail"]).items():
        state.mail.setdefault(recipient, {})[sender] = backend.store(pack(tensors))
    return state


def _ledger(record: dict[str, Any]) -> Ledger:
    versions = {int(client): known for client, known in record.pop("versions").items()}
    return Ledger(versions=versions, **record)


def _group(
    tensors: Mapping[Key, Tensor], names: Iterable[str | int]
) -> dict[str | int, dict[str, Tensor]]:
    groups: dict[str | int, dict[str, Tensor]] = {name: {} for name in names}
    for (first, name), tensor in tensors.items():
        groups[first][str(name)] = tensor
    return groups


def _group_mail(
    tensors: Mapping[Key, Tensor], routes: Iterable[tuple[int, int]]
) -> dict[tuple[int, int], dict[str, Tensor]]:
    letters: dict[tuple[int, int], dict[str, Tensor]] = {(to, by): {} for to, by in routes}
    for (recipient, sender, name), tensor in tensors.items():
        letters[int(recipient), int(sender)][str(name)] = tensor
    return letters
