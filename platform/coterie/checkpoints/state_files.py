"""Clients' states on disk, stored by content hash and shared between checkpoints."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from coterie.checkpoints.client_rows import RowFiles
from coterie.checkpoints.integrity import DamagedError
from coterie.checkpoints.state_packs import (
    PACK_BYTES,
    SUFFIX,
    check_pack,
    pack_sizes,
    packs_in,
    read_pack,
    write_pack,
)
from coterie.execution.backend import Backend
from coterie.execution.events import Handle
from coterie.execution.packing import Packed, digest

_PLAIN = re.compile(r"[0-9a-z-]+")
"""Names of packs and digests of states; anything else would be a path to elsewhere."""


class _Known(NamedTuple):
    """A client's state as last hashed."""

    handle: Handle
    digest: str
    size: int


class StateFiles:
    """The clients' states in a folder, in packs.

    A state that is unchanged since the last call of `digests` is neither fetched nor hashed again,
    and a state in the folder is not written again, unless over half of its pack is out of use. A
    pack of an earlier process is read once, and its states count as missing if it is damaged.
    """

    def __init__(self, folder: Path, backend: Backend) -> None:
        self.rows = RowFiles(folder)
        self._folder = folder
        self._backend = backend
        self._known: dict[int, _Known] = {}
        self._packs: dict[Path, dict[str, int]] | None = None
        self._places: dict[str, Path] = {}

    def digests(self, states: Mapping[int, Handle]) -> dict[int, str]:
        """Return the digest of each client's state."""
        known = {}
        for client, handle in sorted(states.items()):
            before = self._known.get(client)
            if before is None or before.handle is not handle:
                packed = self._backend.fetch(handle)
                before = _Known(handle, digest(packed), packed.nbytes)
            known[client] = before
        self._known = known
        return {client: found.digest for client, found in known.items()}

    def missing(self, digests: Mapping[int, str]) -> dict[str, int]:
        """Return the digests that are missing or damaged in the folder, each with one client.

        Those of packs that are mostly out of use are among them.
        """
        wanted = {d: client for client, d in digests.items()}
        packs = self._index()
        live: Counter[Path] = Counter()
        for found in wanted.keys() & self._places.keys():
            live[self._places[found]] += packs[self._places[found]][found]
        kept = {path for path, size in live.items() if 2 * size >= sum(packs[path].values())}
        return {
            found: client for found, client in wanted.items() if self._places.get(found) not in kept
        }

    def size(self, missing: Mapping[str, int]) -> int:
        """Return the size of the missing states in bytes."""
        return sum(self._known[client].size for client in missing.values())

    def write(self, states: Mapping[int, Handle], missing: Mapping[str, int]) -> None:
        """Write the missing states in packs, each atomically."""
        packs = self._index()
        for group in self._groups(missing):
            contents = {found: self._backend.fetch(states[c]) for found, c in group.items()}
            path = write_pack(self._folder, contents)
            packs[path] = {found: self._known[client].size for found, client in group.items()}
            self._places |= dict.fromkeys(group, path)

    def packs(self, digests: Collection[str]) -> list[str]:
        """Return the names of the packs that hold these states, without their suffix."""
        return sorted({self._places[d].stem for d in set(digests) & self._places.keys()})

    def read(
        self, digests: Collection[str], packs: Collection[str]
    ) -> Iterator[tuple[str, Packed]]:
        """Read the states with these digests, one after the other.

        Raises:
            DamagedError: If one is missing, or its content has another digest.
        """
        if not all(_PLAIN.fullmatch(name) for name in (*digests, *packs)):
            raise DamagedError("run.json names a client's state that is not a digest")
        wanted = set(digests)
        for path in (self._folder / f"{name}{SUFFIX}" for name in packs):
            check_pack(path)
            for found, packed in read_pack(path, frozenset(wanted)):
                wanted.discard(found)
                yield found, _checked(found, packed)
        if wanted:
            raise DamagedError(f"a client's state {min(wanted)} is in none of its packs")

    def collect(self, live: Collection[str]) -> None:
        """Delete all files except the live packs and rows."""
        self.rows.collect(live)
        for path in self._folder.glob(f"*{SUFFIX}"):
            if path.stem not in live:
                path.unlink()
                if self._packs is not None:
                    self._packs.pop(path, None)
        self._places = {d: path for d, path in self._places.items() if path.stem in live}

    def _index(self) -> dict[Path, dict[str, int]]:
        """Return the states in each pack with their sizes; damaged packs are left out."""
        if self._packs is None:
            self._packs = {}
            for path in packs_in(self._folder):
                with suppress(DamagedError):
                    check_pack(path)
                    self._packs[path] = pack_sizes(path)
                    self._places |= dict.fromkeys(self._packs[path], path)
        gone = [path for path in self._packs if not path.exists()]
        for path in gone:
            del self._packs[path]
        if gone:
            self._places = {d: path for d, path in self._places.items() if path in self._packs}
        return self._packs

    def _groups(self, missing: Mapping[str, int]) -> Iterator[dict[str, int]]:
        """Return the missing states in groups of at most `PACK_BYTES`, or of a single state."""
        group: dict[str, int] = {}
        size = 0
        for found, client in sorted(missing.items()):
            own = self._known[client].size
            if group and size + own > PACK_BYTES:
                yield group
                group, size = {}, 0
            group[found] = client
            size += own
        if group:
            yield group


def _checked(found: str, packed: Packed) -> Packed:
    if digest(packed) != found:
        raise DamagedError(f"a client's state {found} has another checksum")
    return packed
