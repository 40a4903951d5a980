"""`metrics.jsonl`: every tracked number of a run, one JSON object per line."""

import json
import logging
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from coterie.config.record_names import RESERVED, Status
from coterie.config.regular_files import open_regular
from coterie.errors import ContractError, DataError
from coterie.tracking.paths import open_own, part_links

_log = logging.getLogger(__name__)

_LONGEST = 1 << 24
"""Longest line in bytes; those of runs have some thousands."""


@dataclass(frozen=True, kw_only=True)
class MetricsRow:
    """Metrics of the server or of one client in one phase.

    Attributes:
        step: The phase's number within its round, from 0.
        values: The metrics by name.
        client: The client; None for the server.
        failure: What failed, as a sentence; the row is then an event without metrics.
        status: How the run ended; the row is then the last one, with the run's final numbers.
        messages: What clients sent, key by key; the row is then for the audit, without metrics.
    """

    round: int
    stage: str
    phase: str
    step: int
    values: Mapping[str, float]
    client: int | None = None
    failure: str | None = None
    status: Status | None = None
    messages: Sequence[Mapping[str, Any]] | None = None

    @property
    def scope(self) -> Literal["server", "client", "event", "run", "messages"]:
        """The kind of row."""
        if self.messages is not None:
            return "messages"
        if self.failure is not None:
            return "event"
        if self.status is not None:
            return "run"
        return "server" if self.client is None else "client"

    def to_json(self) -> str:
        """Return the row as a line of strict JSON; numbers that are not finite become null.

        Raises:
            ContractError: If a metric has the name of a reserved key.
        """
        if taken := sorted(set(RESERVED) & set(self.values)):
            raise ContractError(f"metric {taken[0]!r}: the name is reserved; rename the metric.")
        given = {name: getattr(self, name) for name in RESERVED}
        place = {name: value for name, value in given.items() if value is not None}
        metrics = {name: finite(value) for name, value in self.values.items()}
        return json.dumps({**place, **metrics}, ensure_ascii=False, allow_nan=False)


def finite(value: float) -> float | None:
    """Return a number for strict JSON: None for NaN and infinities."""
    if isinstance(value, int):
        return value
    number = float(value)  # NumPy's and PyTorch's scalars too
    return number if math.isfinite(number) else None


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number that a float can hold."""
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Flatten nested mappings, joining names by slashes; keep only finite numbers."""
    return {name: value for name, value in leaves(values, prefix) if is_number(value)}


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Return the values of nested mappings with their names, joined by slashes."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{name}/")
        else:
            yield prefix + name, value


class MetricsLog:
    """Unbuffered file of rows, `metrics.jsonl`, to which rows are appended.

    Rows that cannot be written, for instance because the disk is full, are kept in memory with a
    warning and written before the next row, so that the run goes on.

    Args:
        path: The file; it is created or continued.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        part_links(path)
        descriptor = open_own(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.file = os.fdopen(descriptor, "ab", buffering=0)
        self._waiting = b""

    @property
    def offset(self) -> int:
        """The bytes so far, including rows in memory; checkpoints store it for `truncate_to`."""
        return os.fstat(self.file.fileno()).st_size + len(self._waiting)

    def rows(self, *scopes: str) -> list[dict[str, Any]]:
        """Return the rows written so far; see `read_rows`."""
        return read_rows(self.path, *scopes)

    def append(self, row: MetricsRow) -> None:
        """Append a row.

        Raises:
            ContractError: If a metric has the name of a reserved key.
        """
        waited = bool(self._waiting)
        self._waiting += row.to_json().encode() + b"\n"
        try:
            while self._waiting:  # an unbuffered write may take only a part
                self._waiting = self._waiting[self.file.write(self._waiting) :]
        except OSError as error:
            if not waited:
                _log.warning(
                    "%s: cannot write (%s): the run goes on and its metrics wait in memory; make "
                    "room.",
                    self.path,
                    error.strerror,
                )

    def truncate_to(self, offset: int) -> None:
        """Remove rows written after a checkpoint, which a resumed run writes again.

        A file that is shorter, for example after a power cut, is kept with a warning, so that the
        run goes on. An incomplete line at its end is removed.
        """
        if offset < 0:
            raise ValueError(f"offset={offset}: it cannot be negative")
        if self.offset < offset:
            _log.warning(
                "%s holds %d bytes, the checkpoint expects %d: the rows between are lost; look for "
                "a copy of the file if you need them.",
                self.path,
                self.offset,
                offset,
            )
            whole = (line for line in _lines(self.path) if line.endswith(b"\n"))
            self.file.truncate(sum(map(len, whole)))
            return
        self._waiting = b""
        self.file.truncate(offset)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._waiting:
            _log.warning(
                "%s: its last %d rows could not be written and are lost.",
                self.path,
                self._waiting.count(b"\n"),
            )
            self._waiting = b""
        self.file.close()


def read_rows(path: Path, *scopes: str) -> list[dict[str, Any]]:
    """Return the rows of a file, without lines that a crash cut short; none if there is no file.

    Args:
        path: The file, which is read line by line.
        scopes: The scopes of the rows; by default all.

    Raises:
        DataError: If a line is far longer than those of a run.
    """
    if not path.is_file():
        return []
    rows = (parse_row(line.decode("utf-8", "replace")) for line in _lines(path))
    return [row for row in rows if row and (not scopes or row.get("scope") in scopes)]


def _lines(path: Path) -> Iterator[bytes]:
    """Return the lines of a file, which end in line feeds only."""
    with open_regular(path) as file:
        while line := file.readline(_LONGEST + 1):
            if len(line) > _LONGEST:
                raise DataError(
                    f"{path}: a line has more than {_LONGEST >> 20} MiB, which no run writes; "
                    "restore the file, or remove it."
                )
            yield line


def parse_row(line: str) -> dict[str, Any] | None:
    """Parse a line; None if a crash cut it short, or it is not a row."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
