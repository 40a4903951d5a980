"""The modules of a completed run of a user's own module: the global one, and each client's."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.checkpoints.checkpoint import load_checkpoint
from coterie.contract.own_module import FederatesModule
from coterie.contract.phase import ServerState
from coterie.errors import DataError
from coterie.execution.packing import Packed, unpack
from coterie.models.module_checkpoint import write_module


@dataclass(frozen=True, kw_only=True)
class OwnModules:
    """The modules of a completed run."""

    method: FederatesModule
    server: ServerState
    checkpoints: Path
    clients: int

    def module(self) -> Any:
        """Return the module with the global values."""
        return self.method.module_for(self.server, None)

    def client_module(self, client: int) -> Any:
        """Return the module with the global values and what the client keeps.

        Raises:
            DataError: If there is no such client.
        """
        if not 0 <= client < self.clients:
            raise DataError(f"client {client}: there is none; give 0 to {self.clients - 1}.")
        state = load_checkpoint(self.checkpoints, _Here()).state  # type: ignore[arg-type]
        kept: Packed | None = state.states.get(client)
        return self.method.module_for(self.server, None if kept is None else unpack(kept))

    def save(self, path: str | Path) -> None:
        """Write the global module as a Lightning checkpoint."""
        write_module(Path(path), self.module(), round_=self.server.round)


class _Here:
    """In-process store of clients' kept values, in place of a backend, to read a checkpoint."""

    def store(self, packed: Packed) -> Packed:
        return packed

    def fetch(self, handle: Packed) -> Packed:
        return handle
