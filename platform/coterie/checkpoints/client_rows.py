"""Each client's row of a checkpoint's record, in separate files, so that only changes are written.

A row is the digest of a client's state, its version of each slot, the bytes that it received, and
its account. The record itself has the rows that changed last, at most `INLINE`. All others lie in
files `rows-<digest>.json`, named after their own bytes and shared between checkpoints; of two rows
of a client the later one counts. Files of like size are merged, so each row is written again only
as often as the number of rows doubles.
"""

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from coterie.checkpoints.integrity import DamagedError, file_digest
from coterie.config.plain_files import read_json
from coterie.rounds.accounts import ClientAccount
from coterie.rounds.state import RunState
from coterie.tracking.atomic import write_text_atomically

INLINE = 1000
"""The most rows that a record itself may hold."""
_MOST = 100_000
"""The most rows in a file."""
COLUMNS = ("clients", "versions", "received", "accounts")
"""The parts of a record that are about clients, in the order of a row."""
_PREFIX = "rows-"
_DIGEST = re.compile(r"[0-9a-f]+")


class Row(NamedTuple):
    """One client's row of a record; unknown values are None or empty."""

    state: str | None
    versions: Mapping[str, str] | None
    received: int | None
    account: ClientAccount | None


class _Part(NamedTuple):
    """A file, and the clients of its rows."""

    path: Path
    clients: frozenset[int]


class RowFiles:
    """The files of rows in a folder, as far as this process has written them.

    Rows are compared with the last ones in memory. Nothing is known of the files of an earlier
    process, so the first checkpoint writes all rows.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[int, Row] = {}
        self._parts: list[_Part] = []
        self._inline: frozenset[int] = frozenset()

    def write(self, rows: dict[int, Row]) -> tuple[dict[int, Row], list[str]]:
        """Write the rows that have changed, if they are too many for the record itself.

        Returns:
            The rows that the record has to have, and the names of the files with the others, from
            the oldest on.
        """
        gone = self._known.keys() - rows.keys()  # the run has gone back
        if gone or not all(part.path.exists() for part in self._parts):
            self._known, self._parts, self._inline = {}, [], frozenset()
        changed = {client for client, row in rows.items() if self._known.get(client) != row}
        inline, parts = self._inline | changed, list(self._parts)
        if len(inline) > INLINE:
            while parts and len(parts[-1].clients) <= min(2 * len(inline), _MOST):
                inline |= parts.pop().clients
            every, inline = sorted(inline), frozenset()
            starts = range(0, len(every), _MOST)
            parts += [self._file(every[start : start + _MOST], rows) for start in starts]
        self._known, self._parts, self._inline = rows, parts, inline
        return {client: rows[client] for client in sorted(inline)}, [p.path.stem for p in parts]

    def collect(self, live: Collection[str]) -> None:
        """Delete all files except the live ones."""
        for path in self._folder.glob(f"{_PREFIX}*.json"):
            if path.stem not in live:
                path.unlink()

    def _file(self, clients: Sequence[int], rows: Mapping[int, Row]) -> _Part:
        text = json.dumps({client: _plain(rows[client]) for client in clients}, allow_nan=False)
        digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        path = self._folder / f"{_PREFIX}{digest}.json"
        self._folder.mkdir(parents=True, exist_ok=True)
        write_text_atomically(path, text)
        return _Part(path, frozenset(clients))


def rows_of(state: RunState, digests: Mapping[int, str]) -> dict[int, Row]:
    """Return the row of each client that has ever taken part."""
    ledger, accounts = state.ledger, state.accounts
    clients = digests.keys() | ledger.versions.keys() | ledger.received.keys() | accounts.keys()
    return {
        client: Row(
            digests.get(client),
            ledger.versions.get(client),
            ledger.received.get(client),
            accounts.get(client),
        )
        for client in clients
    }


def split(rows: Mapping[int, Row]) -> dict[str, dict[str, Any]]:
    """Return the rows as columns of a record: "clients", "versions", "received" and "accounts"."""
    return _columns({str(client): _plain(row) for client, row in rows.items()})


def read_rows(folder: Path, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Read files of rows; a client's row in a later file replaces one in an earlier file.

    Raises:
        DamagedError: If one is missing, or its content has another digest.
    """
    found: dict[str, Any] = {}
    for name in names:
        digest = name.removeprefix(_PREFIX)
        if not _DIGEST.fullmatch(digest):
            raise DamagedError("run.json names a file of clients that is not a digest")
        path = folder / f"{_PREFIX}{digest}.json"
        if file_digest(path) != digest:
            raise DamagedError(f"{path.name} has another checksum")
        found |= read_json(path)
    return _columns(found)


def joined(
    earlier: Mapping[str, Mapping[str, Any]], later: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Join two sets of rows; a client's later row replaces its earlier one."""
    anew = set().union(*later.values())
    return {
        name: {**{c: value for c, value in earlier[name].items() if c not in anew}, **values}
        for name, values in later.items()
    }


def _plain(row: Row) -> list[Any]:
    return [*row[:3], None if row.account is None else asdict(row.account)]


def _columns(found: Mapping[str, Sequence[Any]]) -> dict[str, dict[str, Any]]:
    return {
        name: {client: row[place] for client, row in found.items() if row[place] is not None}
        for place, name in enumerate(COLUMNS)
    }
