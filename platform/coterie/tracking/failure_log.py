"""`failures.log`: the tracebacks of what failed, the first of each kind."""

import os
from collections.abc import Callable
from pathlib import Path

from coterie.contract.phase import Phase
from coterie.errors import reason
from coterie.execution.events import ClientFailed
from coterie.execution.failure_trace import trace_of
from coterie.tracking.paths import open_own, part_links

_MOST_BYTES = 1 << 20


class FailureLog:
    """A log of up to 1 MiB; a failure to write it does not end the run.

    Args:
        path: The log; it is made with the first failure.
        note: Tells people of the log, once.
    """

    def __init__(self, path: Path, note: Callable[[str], None]) -> None:
        self._path, self._note = path, note
        self._kinds: set[tuple[str, str]] = set()

    def write(self, phase: Phase, failed: ClientFailed) -> None:
        """Write a failure, unless one of the same type at the same place is already there."""
        self._keep(f"round {phase.round}, {phase.name}: client {failed.client}", failed.trace)

    def write_of_server(self, round_: int, hook: str, error: Exception) -> None:
        """Write the error that a hook of a user's module raised on the server."""
        self._keep(f"round {round_}, {hook}: server", trace_of(error, private=False))

    def _keep(self, where: str, trace: str) -> None:
        place, _, error = trace.rpartition("\n")
        kind = place, error.partition(":")[0]
        content = f"{where}\n{trace}\n\n".encode("utf-8", "replace")
        size = self._path.stat().st_size if self._path.exists() else 0
        if not trace or kind in self._kinds or size + len(content) > _MOST_BYTES:
            return
        told = f"Tracebacks of what fails: {self._path}."
        try:
            part_links(self._path)
            descriptor = open_own(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            with os.fdopen(descriptor, "ab") as file:
                file.write(content)
        except OSError as error:
            told = f"The traceback of a failure cannot be written ({reason(error)})."
        if not self._kinds:
            self._note(told)
        self._kinds.add(kind)
