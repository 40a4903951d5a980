"""The time limit of a client's turn."""

import time
from collections.abc import Callable
from dataclasses import dataclass


class ClientTimeoutError(Exception):
    """A client's turn takes too long."""


def timeout_message(limit: float) -> str:
    """Why a client that takes too long has failed."""
    return f"took longer than faults.client_timeout_s={limit:g}"


@dataclass
class Deadline:
    """Raises between the steps of training when a turn takes too long or the run is to stop.

    Attributes:
        limit: Seconds a turn may take, or None.
        stop: Called at every check; raises when the run is to stop.
    """

    limit: float | None
    stop: Callable[[], None]
    _until: float = float("inf")

    def begin(self) -> None:
        """A turn begins."""
        if self.limit is not None:
            self._until = time.monotonic() + self.limit

    def check(self) -> None:
        """Raise a ClientTimeoutError if the turn has taken too long."""
        self.stop()
        if self.limit is not None and time.monotonic() > self._until:
            raise ClientTimeoutError(timeout_message(self.limit))
