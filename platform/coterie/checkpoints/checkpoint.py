"""Saves checkpoints atomically (server, clients, peer messages, ledger), and loads them."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from coterie.checkpoints.client_rows import rows_of
from coterie.checkpoints.integrity import DamagedError, check_files, file_digest, seal, unseal
from coterie.checkpoints.record import (
    check_record,
    group_slots,
    load_tensors_file,
    restore,
    save_tensors,
    state_record,
    state_tensors,
    with_rows,
)
from coterie.checkpoints.retention import checkpoint_name, checkpoints_in, pointed_to, superseded
from coterie.checkpoints.state_files import StateFiles
from coterie.config.schema import CheckpointConfig
from coterie.contract.phase import Slots
from coterie.errors import DataError, reason
from coterie.execution.backend import Backend
from coterie.rounds.state import RunState
from coterie.tracking.atomic import write_text_atomically
from coterie.tracking.paths import make_private

FORMAT = 1
STATES = "states"
_MALFORMED = (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError)
"""Errors that a record with a right checksum but other content raises."""
_SERVER = "server.safetensors"
_FILES = (_SERVER, "stages.safetensors", "peer_messages.safetensors")


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A loaded checkpoint.

    Attributes:
        tracking: The tracker's position.
        config: The run's config, as plain values.
        data: The fingerprint of the run's data.
        damaged: One sentence for each later checkpoint that is damaged.
    """

    state: RunState
    tracking: Mapping[str, int]
    config: Mapping[str, Any]
    data: Mapping[str, Any]
    path: Path
    damaged: tuple[str, ...] = ()


def save_checkpoint(
    folder: Path,
    state: RunState,
    backend: Backend,
    *,
    tracking: Mapping[str, int],
    config: Mapping[str, Any],
    policy: CheckpointConfig,
    data: Mapping[str, Any] | None = None,
    states: StateFiles | None = None,
    best: bool = False,
) -> Path:
    """Write `folder/round-000010`, point `folder/latest` at it and delete superseded checkpoints.

    Clients' states are stored by content in `folder/states`, many in a file, and so is what the
    record says of each client: only what has changed is written. A crash at any moment leaves the
    checkpoint before it intact.

    Args:
        folder: The run's `checkpoints/`.
        state: The run's state.
        backend: Reads clients' states.
        tracking: The tracker's position, to which a resumed run truncates its metrics.
        config: The run's config as plain values; only the same run may resume.
        policy: Which checkpoints to keep.
        data: The fingerprint of the run's data, with which a resumed run compares its own.
        states: The state files of the folder, with what is known of them; by default new.
        best: Whether this is the best checkpoint; `folder/best` then names it too.

    Returns:
        The checkpoint's folder.
    """
    states = states or StateFiles(folder / STATES, backend)
    name = checkpoint_name(state.server.round, state.server.step)
    make_private(folder)
    with _unfinished(folder / f".{name}.partial") as partial:
        digests = states.digests(state.states)
        states.write(state.states, states.missing(digests))
        for file, tensors in zip(_FILES, state_tensors(state, backend), strict=True):
            save_tensors(partial / file, tensors)
        inline, files = states.rows.write(rows_of(state, digests))
        record = {
            "format": FORMAT,
            **state_record(state, inline),
            "rows": files,
            "packs": states.packs(digests.values()),
            "tracking": dict(tracking),
            "config": dict(config),
            **({"data": dict(data)} if data else {}),
            "files": {file: file_digest(partial / file) for file in _FILES},
        }
        write_text_atomically(partial / "run.json", seal(record))
        _publish(folder, partial, name, best=best)
    _prune(folder, name, policy, states)
    return folder / name


def has_checkpoint(folder: Path) -> bool:
    """Return whether a run's `checkpoints/` holds a checkpoint."""
    return bool(_candidates(folder))


def load_checkpoint(folder: Path, backend: Backend, which: str | int = "latest") -> Loaded:
    """Read a checkpoint of a run's `checkpoints/`.

    If the latest one is damaged, the one before it is read.

    Args:
        folder: The run's `checkpoints/`.
        backend: Stores clients' states.
        which: "latest", "best" or a round.

    Raises:
        DataError: If there is none, all are damaged, or the format is another.
    """
    if which != "latest":
        name = _named(folder, which)
        try:
            return _read(folder, name, backend)
        except DamagedError as error:
            raise DataError(f"{folder / name}: {error}; choose another checkpoint.") from error
    candidates, damaged = _candidates(folder), []
    if not candidates:
        raise DataError(f"{folder}: no checkpoint in it; start the run afresh.")
    for name in candidates:
        try:
            loaded = _read(folder, name, backend)
        except DamagedError as error:
            damaged.append(f"{folder / name}: {error}")
            continue
        return replace(
            loaded, damaged=tuple(f"{each}; the one before it is used." for each in damaged)
        )
    raise DataError(
        f"{folder}: none of its {len(candidates)} checkpoints is intact ({damaged[0]}); restore "
        "one from a backup, or start afresh in a new run_dir."
    )


def server_slots(folder: Path) -> Slots:
    """Return the slots of the server's state in the latest checkpoint of a run's `checkpoints/`."""
    for name in _candidates(folder)[:1]:
        path = folder / name
        try:
            record = unseal(path / "run.json")
            check_files(path, {_SERVER: record["files"][_SERVER]})
            return group_slots(load_tensors_file(path / _SERVER), record["slots"])
        except (DamagedError, SafetensorError, *_MALFORMED) as error:
            raise DataError(f"{path}: it is damaged ({reason(error)}); resume the run.") from error
    raise DataError(f"{folder}: no checkpoint in it; start the run afresh.")


def _read(folder: Path, name: str, backend: Backend) -> Loaded:
    path = folder / name
    try:
        record = unseal(path / "run.json")
        return _restored(folder, path, record, backend)
    except _MALFORMED as error:
        kind = type(error).__name__
        raise DamagedError(f"run.json is not a checkpoint's record ({kind})") from error


def _restored(folder: Path, path: Path, record: dict[str, Any], backend: Backend) -> Loaded:
    if record["format"] != FORMAT:
        raise DataError(
            f"{path}: format {record['format']}, this version reads {FORMAT}; resume it with the "
            "version of Coterie that wrote it, or start afresh in a new run_dir."
        )
    record = with_rows(record, folder / STATES)
    check_record(record)
    check_files(path, {file: record["files"][file] for file in _FILES})
    try:
        tensors = [load_tensors_file(path / file) for file in _FILES]
    except SafetensorError as error:
        raise DamagedError(str(error)) from error
    states = StateFiles(folder / STATES, backend)
    holders: dict[str, list[int]] = {}
    for client, found in record["clients"].items():
        holders.setdefault(found, []).append(int(client))
    kept = {
        client: backend.store(packed)
        for found, packed in states.read(holders, record["packs"])
        for client in holders[found]
    }
    state = restore(record, tensors, dict(sorted(kept.items())), backend)
    return Loaded(
        state=state,
        tracking=record["tracking"],
        config=record["config"],
        data=record.get("data", {}),  # a run without data of its own has no fingerprint
        path=path,
    )


def _named(folder: Path, which: str | int) -> str:
    """Return the checkpoint's name for "best" or a round."""
    name = checkpoint_name(which, 0) if isinstance(which, int) else pointed_to(folder, which)
    names = checkpoints_in(folder)
    if not names:
        raise DataError(f"{folder}: no checkpoint in it; start the run afresh.")
    if name not in names or name is None:
        there = ", ".join(str(int(n[6:12])) for n in reversed(names) if "step" not in n)
        more = " and best" if pointed_to(folder, "best") in names else ""
        wanted = f"checkpoint of round {which}" if isinstance(which, int) else f"{which} checkpoint"
        raise DataError(f"{folder}: it has no {wanted}; it has those of rounds {there}{more}.")
    return name


def _candidates(folder: Path) -> list[str]:
    """Return the checkpoints to try, in order: `latest`, then the others from the newest."""
    latest = pointed_to(folder, "latest")
    formers = sorted((path.name for path in folder.glob(".round-*.former")), reverse=True)
    first = [] if latest is None else [latest, _former(latest)]
    names = dict.fromkeys([*first, *checkpoints_in(folder), *formers])
    return [name for name in names if (folder / name).is_dir()]


@contextmanager
def _unfinished(folder: Path) -> Iterator[Path]:
    """Create an empty folder; delete it again if it cannot be filled and renamed."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _publish(folder: Path, partial: Path, name: str, *, best: bool) -> None:
    """Rename a complete checkpoint to its final name, and replace an earlier one of that name.

    `latest` is written last: a run that resumes from it remembers a best score, whose checkpoint
    must be the one that `best` names.
    """
    final, former = folder / name, folder / _former(name)
    if final.exists():  # `latest` may name it; until the replacement it is found under `former`
        shutil.rmtree(former, ignore_errors=True)
        final.rename(former)
    partial.rename(final)
    if best:
        write_text_atomically(folder / "best", name + "\n")
    write_text_atomically(folder / "latest", name + "\n")
    shutil.rmtree(former, ignore_errors=True)


def _prune(folder: Path, written: str, policy: CheckpointConfig, states: StateFiles) -> None:
    crashed = [path.name for path in folder.glob(".round-*")]
    for name in [*superseded(folder, written, policy), *crashed]:
        shutil.rmtree(folder / name)
    try:
        records = [unseal(folder / name / "run.json") for name in checkpoints_in(folder)]
    except DamagedError:
        return  # keep every state, because a damaged record does not say which it needs
    states.collect({name for record in records for name in (*record["packs"], *record["rows"])})


def _former(name: str) -> str:
    return f".{name}.former"
