"""A checkpoint is the whole run: server, clients' states, mail, accounting. Written atomically."""

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from coterie.checkpoints.tensors_file import Key, load_tensors_file, save_tensors
from coterie.contract.phase import ServerState, Slots
from coterie.engine.backend import Backend
from coterie.engine.ledger import Ledger
from coterie.engine.loop import RunState
from coterie.engine.packing import pack, unpack
from coterie.errors import DataError
from coterie.tracking.run_directory import write_text_atomically

_FORMAT = 2


def save_checkpoint(
    folder: Path, state: RunState, backend: Backend, tracking: Mapping[str, int], keep: int
) -> Path:
    """Write `folder/round-000010` and point `folder/latest` at it; drop all but the last `keep`.

    Args:
        folder: The run's `checkpoints/`.
        state: What to write.
        backend: Where the clients' states lie.
        tracking: The tracker's position, so that a resumed run cuts its metrics back to here.
        keep: How many checkpoints to leave.

    Returns:
        The checkpoint's folder. A crash at any moment leaves the one before it whole.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = f"round-{state.server.round:06d}"
    if state.server.step:
        name += f"-step-{state.server.step:03d}"
    partial = folder / f".{name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    save_tensors(partial / "server.safetensors", _grouped(state.server.slots))
    save_tensors(partial / "clients.safetensors", _client_tensors(state, backend))
    save_tensors(partial / "mail.safetensors", _mail_tensors(state, backend))
    save_tensors(partial / "optimizer.safetensors", _grouped(state.optimizer))
    text = json.dumps(_accounting(state, tracking), allow_nan=False)
    write_text_atomically(partial / "run.json", text)
    final, former = folder / name, _former(folder, name)
    if (
        final.exists()
    ):  # `latest` may name it: until it is replaced, `load_checkpoint` finds it here
        shutil.rmtree(former, ignore_errors=True)
        final.rename(former)
    partial.rename(final)
    write_text_atomically(folder / "latest", name + "\n")
    shutil.rmtree(former, ignore_errors=True)
    _prune(folder, name, keep)
    return final


def has_checkpoint(folder: Path) -> bool:
    """Whether there is a checkpoint in a run's `checkpoints/`."""
    return (folder / "latest").is_file()


def load_checkpoint(folder: Path, backend: Backend) -> tuple[RunState, dict[str, int]]:
    """Read the latest checkpoint of a run's `checkpoints/`.

    Returns:
        The run's state and the tracker's position.

    Raises:
        DataError: If there is none, or it is of another format.
    """
    pointer = folder / "latest"
    if not pointer.is_file():
        raise DataError(f"{folder}: no checkpoint in it; start the run afresh.")
    name = pointer.read_text().strip()
    path = folder / name if (folder / name).exists() else _former(folder, name)
    record = json.loads((path / "run.json").read_text())
    if record["format"] != _FORMAT:
        raise DataError(f"{path}: format {record['format']}, this version reads {_FORMAT}.")
    slots = _group(load_tensors_file(path / "server.safetensors"), record["slots"])
    server = ServerState(
        round=record["round"],
        step=record["step"],
        facts=record["facts"],
        slots={str(slot): tensors for slot, tensors in slots.items()},
    )
    moments = _group(load_tensors_file(path / "optimizer.safetensors"), record["optimizer"])
    clients = _group(load_tensors_file(path / "clients.safetensors"), record["clients"])
    state = RunState(
        server=server,
        states={int(client): backend.store(pack(t)) for client, t in clients.items()},
        ledger=_ledger(record["ledger"]),
        phases=record["phases"],
        failures=record["failures"],
        dropped=record["dropped"],
        optimizer={str(slot): tensors for slot, tensors in moments.items()},
        simulated=Counter(record["simulated"]),
    )
    letters = load_tensors_file(path / "mail.safetensors")
    for (recipient, sender), tensors in _group_mail(letters, record["mail"]).items():
        state.mail.setdefault(recipient, {})[sender] = backend.store(pack(tensors))
    return state, record["tracking"]


def _grouped(slots: Slots) -> dict[Key, Tensor]:
    return {(slot, name): t for slot, tensors in slots.items() for name, t in tensors.items()}


def _client_tensors(state: RunState, backend: Backend) -> dict[Key, Tensor]:
    kept = {client: unpack(backend.fetch(handle)) for client, handle in state.states.items()}
    return {(c, name): t for c, tensors in sorted(kept.items()) for name, t in tensors.items()}


def _mail_tensors(state: RunState, backend: Backend) -> dict[Key, Tensor]:
    return {
        (recipient, sender, name): tensor
        for recipient, letters in sorted(state.mail.items())
        for sender, handle in sorted(letters.items())
        for name, tensor in unpack(backend.fetch(handle)).items()
    }


def _accounting(state: RunState, tracking: Mapping[str, int]) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "round": state.server.round,
        "step": state.server.step,
        "facts": dict(state.server.facts),
        # By name, for a slot, a state or a message without tensors is in no tensors file.
        "slots": sorted(state.server.slots),
        "clients": sorted(state.states),
        "mail": [[to, sender] for to in sorted(state.mail) for sender in sorted(state.mail[to])],
        "phases": state.phases,
        "failures": state.failures,
        "dropped": state.dropped,
        "optimizer": sorted(state.optimizer),
        "simulated": dict(state.simulated),
        "ledger": asdict(state.ledger),
        "tracking": dict(tracking),
    }


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


def _former(folder: Path, name: str) -> Path:
    return folder / f".{name}.former"


def _prune(folder: Path, written: str, keep: int) -> None:
    """Leave the one just written, whatever its round, and the latest rounds besides it."""
    others = sorted(path.name for path in folder.glob("round-*") if path.name != written)
    for old in others[: len(others) - (keep - 1)]:
        shutil.rmtree(folder / old)
