"""Starts Ray beside the driver's own imports.

A run begins with some seconds of imports in the driver, and `ray.init` takes some more, most of
them waiting for other processes. Neither needs the other's result, so Ray is started in a thread.
"""

import contextlib
import threading
from collections.abc import Iterator

from coterie.config.schema import ClusterConfig


class EarlyStart:
    """A connection to Ray that is being made; `connect` takes it over."""

    pending: "EarlyStart | None" = None

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config
        self._ours = False
        self._error: BaseException | None = None
        self._ready = threading.Event()
        # It never ends: Ray's processes are killed with the thread that started them.
        self._thread = threading.Thread(target=self._run, name="ray-start", daemon=True)

    def begin(self) -> None:
        """Start Ray in the background."""
        EarlyStart.pending = self
        self._thread.start()

    def take(self) -> bool:
        """Wait until Ray runs; whether it is to be ended by whoever takes it.

        Raises:
            CoterieError: If Ray could not be started.
        """
        EarlyStart.pending = None
        self._ready.wait()
        if self._error is not None:
            raise self._error
        return self._ours

    def abandon(self) -> None:
        """End Ray again, for nobody took it."""
        from coterie.distributed.cluster import disconnect

        EarlyStart.pending = None
        self._ready.wait()
        if self._ours:
            disconnect()

    def _run(self) -> None:
        self._connect()
        self._ready.set()
        threading.Event().wait()

    def _connect(self) -> None:
        from coterie.distributed.cluster import join_or_start

        try:
            self._ours = join_or_start(self._config)
        except BaseException as error:  # noqa: BLE001 - of a thread; `take` raises it
            self._error = error


@contextlib.contextmanager
def early_start(config: ClusterConfig) -> Iterator[None]:
    """Start Ray beside the body; end it if the body ended without it."""
    if config.backend != "ray":
        yield
        return
    start = EarlyStart(config)
    start.begin()
    try:
        yield
    finally:
        if EarlyStart.pending is start:
            start.abandon()
