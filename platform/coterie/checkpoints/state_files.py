"""Clients' states on disk, stored by content and shared between checkpoints."""

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from coterie.checkpoints.integrity import DamagedError
from coterie.execution.backend import Backend
from coterie.execution.events import Handle
from coterie.execution.packing import Packed, digest, pack, unpack
from coterie.tracking.atomic import replacing

_SUFFIX = ".safetensors"
_DIGEST = re.compile(r"[0-9a-f]+")


class StateFiles:
    """The files `<digest>.safetensors` of a folder.

    A state that is unchanged since the last call of `digests` is neither fetched nor hashed again,
    and a state in the folder is not written again. A file of an earlier process is read once, and
    counts as missing if it is damaged.
    """

    def __init__(self, folder: Path, backend: Backend) -> None:
        self._folder = folder
        self._backend = backend
        self._known: dict[int, tuple[Handle, str]] = {}
        self._whole: set[str] = set()

    def digests(self, states: Mapping[int, Handle]) -> dict[int, str]:
        """Client to its state's digest."""
        known = {}
        for client, handle in sorted(states.items()):
            before = self._known.get(client)
            if before is None or before[0] is not handle:
                before = (handle, digest(self._fetch(handle)))
            known[client] = before
        self._known = known
        return {client: found for client, (_, found) in known.items()}

    def missing(self, digests: Mapping[int, str]) -> dict[str, int]:
        """Digest to one of its clients, for states that are missing or damaged in the folder."""
        return {d: client for client, d in digests.items() if not self._has(d)}

    def size(self, states: Mapping[int, Handle], missing: Mapping[str, int]) -> int:
        """Bytes of the missing states."""
        return sum(self._fetch(states[client]).nbytes for client in missing.values())

    def write(self, states: Mapping[int, Handle], missing: Mapping[str, int]) -> None:
        """Write the missing states, each atomically."""
        for found, client in sorted(missing.items()):
            # Copies, because safetensors refuses tensors that share a buffer.
            views = unpack(self._fetch(states[client]))
            with replacing(self._path(found)) as temporary:
                save_file({name: view.clone() for name, view in views.items()}, temporary)
            self._whole.add(found)

    def read(self, found: str) -> Packed:
        """Read the state with this digest.

        Raises:
            DamagedError: If it is missing, or its content has another digest.
        """
        if not _DIGEST.fullmatch(found):  # it would be a path to elsewhere
            raise DamagedError("run.json names a client's state that is no digest")
        try:
            packed = pack(load_file(self._path(found)))
        except (OSError, SafetensorError) as error:
            raise DamagedError(f"a client's state {found}{_SUFFIX} cannot be read") from error
        if digest(packed) != found:
            raise DamagedError(f"a client's state {found}{_SUFFIX} has another checksum")
        return packed

    def collect(self, live: Collection[str]) -> None:
        """Delete all states except those with these digests."""
        for path in self._folder.glob(f"*{_SUFFIX}"):
            if path.name.removesuffix(_SUFFIX) not in live:
                path.unlink()

    def _has(self, found: str) -> bool:
        if found not in self._whole and self._path(found).exists():
            with suppress(DamagedError):
                self.read(found)
                self._whole.add(found)
        return found in self._whole and self._path(found).exists()

    def _path(self, found: str) -> Path:
        return self._folder / f"{found}{_SUFFIX}"

    def _fetch(self, handle: Handle) -> Packed:
        return self._backend.fetch(handle)
