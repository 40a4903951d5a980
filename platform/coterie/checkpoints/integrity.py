"""Checksums, by which a truncated or altered checkpoint is detected before it is used."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.config.plain_files import read_json
from coterie.config.regular_files import open_regular

_KEY = "checksum"
_CHUNK = 1 << 20


class DamagedError(Exception):
    """A part of a checkpoint is missing, truncated or altered."""


def file_digest(path: Path) -> str:
    """Return the BLAKE2b hash of a file's bytes.

    Raises:
        DamagedError: If it cannot be read.
    """
    state = hashlib.blake2b(digest_size=16)
    try:
        with open_regular(path) as file:
            while block := file.read(_CHUNK):
                state.update(block)
    except OSError as error:
        raise DamagedError(f"{path.name} cannot be read ({error.strerror})") from error
    return state.hexdigest()


def seal(record: Mapping[str, Any]) -> str:
    """Encode a record as JSON with a hash of its content."""
    plain = json.loads(json.dumps(record, allow_nan=False))  # as it will be read: text keys
    return json.dumps({**plain, _KEY: _digest(plain)})


def unseal(path: Path) -> dict[str, Any]:
    """Read a record that `seal` encoded.

    Raises:
        DamagedError: If the file is missing, is not JSON, or its hash does not match.
    """
    try:
        record = read_json(path)
        plain = isinstance(record, dict) and "format" in record
        checksum = record.pop(_KEY, None) if plain else None
        digest = _digest(record)  # a ValueError for numbers that JSON lacks
    except (OSError, ValueError) as error:
        raise DamagedError(f"{path.name} cannot be read") from error
    if not plain:
        raise DamagedError(f"{path.name} is not a checkpoint's record")
    if checksum != digest:
        raise DamagedError(f"{path.name} has another checksum")
    return dict(record)


def check_files(folder: Path, digests: Mapping[str, str]) -> None:
    """Raise a DamagedError unless every file of `folder` has its listed hash."""
    for name, digest in digests.items():
        if file_digest(folder / name) != digest:
            raise DamagedError(f"{name} has another checksum")


def _digest(record: Mapping[str, Any]) -> str:
    text = json.dumps(record, sort_keys=True, allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
