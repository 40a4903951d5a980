"""Connects to Ray, started in a thread while the driver imports PyTorch and Lightning.

The driver's imports take some seconds, and so does `ray.init`, most of it waiting for other
processes. Neither needs the result of the other. A local Ray's idle workers import what an actor
needs at the same time.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

from coterie.config.schema import ClusterConfig
from coterie.errors import RunError

_PRELOADED = ("lightning", "coterie.distributed.actors")


class EarlyStart:
    """A connection to Ray under way in a thread; `connect` takes it over.

    Attributes:
        pending: The one that nobody took yet.
        late: The last one that was not ready in time; it ends its connection itself.
        over: Set once a late connection is ended.
    """

    pending: "EarlyStart | None" = None
    late: "EarlyStart | None" = None

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config
        self._ours = False
        self._error: BaseException | None = None
        self._ready = threading.Event()
        self._lock = threading.Lock()
        self.over = threading.Event()
        # The thread never ends: Ray's processes are killed with the thread that started them.
        self._thread = threading.Thread(target=self._run, name="ray-start", daemon=True)

    def begin(self) -> None:
        """Start the thread."""
        EarlyStart.pending = self
        self._thread.start()

    def take(self) -> bool:
        """Wait for the connection.

        Returns:
            Whether the caller has to end it.

        Raises:
            CoterieError: If Ray could not be started, or not in time.
        """
        EarlyStart.pending = None
        seconds = self._config.start_timeout_s
        self._ready.wait(seconds)
        with self._lock:
            if not self._ready.is_set():
                EarlyStart.late = self
                raise RunError(
                    f"cluster.start_timeout_s={seconds:g}: Ray did not start in time; look for "
                    "what else runs here, or raise it."
                )
        if self._error is not None:
            raise self._error
        return self._ours

    def abandon(self) -> None:
        """End the connection, which nobody took."""
        from coterie.distributed.cluster import disconnect

        EarlyStart.pending = None
        self._ready.wait(self._config.start_timeout_s)
        if self._ours:
            disconnect()

    def _run(self) -> None:
        try:
            self._ours = connect_once(self._config)
        except BaseException as error:  # noqa: BLE001 - of a thread; `take` raises it
            self._error = error
        with self._lock:
            self._ready.set()
        if EarlyStart.late is self and self._ours:
            from coterie.distributed.cluster import disconnect

            disconnect()
        self.over.set()
        threading.Event().wait()


@contextlib.contextmanager
def early_start(config: ClusterConfig) -> Iterator[None]:
    """Connect to Ray in a thread during the body; disconnect after it if nobody took over."""
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


def connect(config: ClusterConfig) -> bool:
    """Connect this process to Ray, or take over the connection of `early_start`.

    Returns:
        Whether the caller has to end the connection.

    Raises:
        ConfigError: If the address is malformed, or one of Ray Client.
        RunError: If no cluster answers at the address.
    """
    if EarlyStart.pending is not None:
        return EarlyStart.pending.take()
    if EarlyStart.late is not None:  # of a run before, in the same process
        EarlyStart.late.over.wait(config.start_timeout_s)
    return connect_once(config)


def local_options(config: ClusterConfig) -> dict[str, Any]:
    """Return `ray.init`'s options for a local cluster: no dashboard, workers that import ahead.

    Ray starts one idle worker per CPU at once and turns workers into actors. With many more CPUs
    than actors, importing ahead would cost memory for nothing, so the workers do not.
    """
    # OpenTelemetry leaves a thread behind at each `ray.init`, which can crash the end of Python
    # (Ray 2.60). Without it OpenCensus exports Ray's own metrics, and ends with the connection.
    system: dict[str, Any] = {"enable_open_telemetry": False}
    if (os.cpu_count() or 1) <= 2 * (config.num_actors or 2):
        system["preload_python_modules"] = list(_PRELOADED)
    return {"include_dashboard": False, "_system_config": system}


def connect_once(config: ClusterConfig) -> bool:
    """Join or start the cluster; whether this process started it."""
    # Imported here: `early_start` is called before anything that takes long is imported.
    from coterie.distributed.cluster import join_or_start

    return join_or_start(config, local_options(config))
