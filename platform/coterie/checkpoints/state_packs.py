"""Files that each hold many clients' states, so that a checkpoint syncs few files.

A pack `pack-<digest>.safetensors`, named after its own bytes, holds each state's buffer, uint8
(bytes,), under the state's digest. Its metadata lists the tensors in each buffer, as JSON.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from coterie.checkpoints.integrity import DamagedError, file_digest
from coterie.execution.packing import Field, Packed
from coterie.tracking.atomic import replacing

PREFIX, SUFFIX = "pack-", ".safetensors"
PACK_BYTES = 1 << 26
"""Size that a pack of states may have; a larger state has its own pack."""


def write_pack(folder: Path, states: Mapping[str, Packed]) -> Path:
    """Write states atomically to a pack, and return its file."""
    fields = {
        found: json.dumps([astuple(f) for f in kept.fields]) for found, kept in states.items()
    }
    content = save({found: kept.buffer for found, kept in states.items()}, fields)
    digest = hashlib.blake2b(content, digest_size=16).hexdigest()
    path = folder / f"{PREFIX}{digest}{SUFFIX}"
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    return path


def packs_in(folder: Path) -> list[Path]:
    """Return the packs of a folder, complete or not."""
    return sorted(folder.glob(f"{PREFIX}*{SUFFIX}"))


def check_pack(path: Path) -> None:
    """Raise a DamagedError unless the file's content has the hash in its name."""
    if file_digest(path) != path.name.removeprefix(PREFIX).removesuffix(SUFFIX):
        raise DamagedError(f"{path.name} of the clients' states has another checksum")


def pack_sizes(path: Path) -> dict[str, int]:
    """Return the size of each state in a pack, by digest."""
    with _opened(path) as file:
        fields = file.metadata() or {}
        return {found: sum(f.nbytes for f in _fields(fields[found])) for found in fields}


def read_pack(path: Path, wanted: frozenset[str]) -> Iterator[tuple[str, Packed]]:
    """Return these states, by digest, as far as the pack has them."""
    with _opened(path) as file:
        fields = file.metadata() or {}
        for found in sorted(wanted & fields.keys()):
            # A copy, because the file is mapped into memory and may be deleted.
            yield found, Packed(file.get_tensor(found).copy(), _fields(fields[found]))


def _fields(text: str) -> tuple[Field, ...]:
    return tuple(Field(name, kind, tuple(s), start) for name, kind, s, start in json.loads(text))


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, "np") as file:
            yield file
    except (OSError, SafetensorError) as error:
        raise DamagedError(f"{path.name} of the clients' states cannot be read") from error
