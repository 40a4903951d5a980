"""A run's state as JSON and named tensors, and back."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from torch import Tensor

from coterie.checkpoints.tensors_file import Key
from coterie.contract.phase import ServerState, Slots
from coterie.execution.backend import Backend
from coterie.execution.events import Handle
from coterie.execution.packing import pack, unpack
from coterie.rounds.state import Ledger, RunState


def all_tensors(state: RunState, backend: Backend) -> tuple[dict[Key, Tensor], ...]:
    """The server's slots, its optimiser's tensors, and the mail in flight."""
    return _slots(state.server.slots), _slots(state.optimizer), _mail(state, backend)


def _slots(slots: Slots) -> dict[Key, Tensor]:
    """(slot, name) to tensor."""
    return {(slot, name): t for slot, tensors in slots.items() for name, t in tensors.items()}


def _mail(state: RunState, backend: Backend) -> dict[Key, Tensor]:
    """(recipient, sender, name) to tensor."""
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
        "optimizer": sorted(state.optimizer),
        "simulated": dict(state.simulated),
        "best": state.best,
        "ledger": asdict(state.ledger),
    }


def restore(
    record: dict[str, Any],
    tensors: Sequence[Mapping[Key, Tensor]],
    states: dict[int, Handle],
    backend: Backend,
) -> RunState:
    """The run's state from what `describe` gave, the tensors as `all_tensors` has them."""
    server, optimizer, mail = tensors
    state = RunState(
        server=ServerState(
            round=record["round"],
            step=record["step"],
            facts=record["facts"],
            slots=_group_slots(server, record["slots"]),
        ),
        states=states,
        ledger=_ledger(record["ledger"]),
        phases=record["phases"],
        failures=record["failures"],
        dropped=record["dropped"],
        best=record["best"],
        optimizer=_group_slots(optimizer, record["optimizer"]),
        simulated=Counter(record["simulated"]),
    )
    for (recipient, sender), letter in _group_mail(mail, record["mail"]).items():
        state.mail.setdefault(recipient, {})[sender] = backend.store(pack(letter))
    return state


def _ledger(record: dict[str, Any]) -> Ledger:
    versions = {int(client): known for client, known in record.pop("versions").items()}
    return Ledger(versions=versions, **record)


def _group_slots(
    tensors: Mapping[Key, Tensor], names: Iterable[str]
) -> dict[str, dict[str, Tensor]]:
    groups: dict[str, dict[str, Tensor]] = {name: {} for name in names}
    for (slot, name), tensor in tensors.items():
        groups[str(slot)][str(name)] = tensor
    return groups


def _group_mail(
    tensors: Mapping[Key, Tensor], routes: Iterable[tuple[int, int]]
) -> dict[tuple[int, int], dict[str, Tensor]]:
    letters: dict[tuple[int, int], dict[str, Tensor]] = {(to, by): {} for to, by in routes}
    for (recipient, sender, name), tensor in tensors.items():
        letters[int(recipient), int(sender)][str(name)] = tensor
    return letters
