"""Notices that a Ray cluster is gone, before Ray ends the driver without a message."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import ray
from ray.exceptions import ObjectStoreFullError, OutOfDiskError, RayError

from coterie.distributed.local_ray import LocalRay
from coterie.distributed.session_folder import no_room
from coterie.errors import RunError, reason

_EVERY_S = 1.0
_ANSWER_S = 1.0
_MISSES = 3
"""Refused checks in a row until the cluster counts as gone; Ray waits for a minute."""
_SILENT_S = 8.0
"""Seconds without an answer until it does, where its process is there but stands still."""
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
"""How a client of HTTP/2, and so of gRPC, begins; a server that runs answers with its settings."""


class ClusterWatch:
    """Watcher that checks at most once a second that the cluster's control process answers.

    Args:
        stop: Called in each check; raises when the run has to stop.

    Attributes:
        look: Called after each answer of the control process: then a call to it does not block.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self.look: Callable[[], None] = lambda: None
        self._due = 0.0
        self._missed = 0
        self._answered = time.monotonic()
        self._looking = False

    def check(self) -> None:
        """Raise what `stop` raises, or a RunError if the cluster is gone."""
        self._stop()
        if time.monotonic() < self._due or not ray.is_initialized():
            return
        self._due = time.monotonic() + _EVERY_S
        if LocalRay.running is not None and LocalRay.running.killed:
            raise RunError(
                "The process that keeps the local Ray was killed; go on with resume=true."
            )
        if LocalRay.running is not None and LocalRay.running.ended == "raylet":
            raise RunError("The raylet of the local Ray has ended; go on with resume=true.")
        address = ray.get_runtime_context().gcs_address
        try:
            _ask(address)
        except OSError as error:
            self._missed += 1
            silent = isinstance(error, TimeoutError)
            late = time.monotonic() - self._answered > _SILENT_S
            if self._missed >= _MISSES and (late or not silent):
                if LocalRay.running is not None and LocalRay.running.address == address:
                    LocalRay.running.end_control()
                raise RunError(
                    f"Ray's control process (gcs_server) at {address} does not answer any more; "
                    "start Ray again where it was not started here, and go on with resume=true."
                ) from error
        else:
            self._missed, self._answered = 0, time.monotonic()
            self._look_once()

    def _look_once(self) -> None:
        """Check the cluster in a thread, unless a check is running: it may take long."""
        if not self._looking:
            self._looking = True
            try:
                self.look()
            finally:
                self._looking = False


def _ask(address: str) -> None:
    """Require an answer from the control process, since a stopped one still accepts connections.

    Raises:
        OSError: If it does not; a TimeoutError if it is there, or its machine is gone.
    """
    host, _, port = address.rpartition(":")
    place = host.strip("[]"), int(port)
    with socket.create_connection(place, timeout=_ANSWER_S) as asking:
        asking.sendall(_PREFACE)
        if not asking.recv(1):
            raise ConnectionResetError


@contextmanager
def as_run_error() -> Iterator[None]:
    """Turn an error of Ray itself, such as a full object store, into a RunError of one sentence."""
    try:
        yield
    except (ObjectStoreFullError, OutOfDiskError) as error:
        raise RunError(
            f"Ray's object store is full, and so is the disk with {_session()}, to which it "
            "spills; make room there, or set RAY_TMPDIR to a folder with more, and go on with "
            "resume=true."
        ) from error
    except RayError as error:
        if ray.is_initialized() and (told := no_room(_session())):
            raise RunError(f"Ray failed: {told}, and go on with resume=true.") from error
        raise RunError(
            f"Ray failed ({type(error).__name__}: {reason(error)}); see its logs, and go on with "
            "resume=true."
        ) from error


def _session() -> Path:
    """Return the session folder of the Ray that this process is connected to."""
    return Path(ray._private.worker._global_node.get_session_dir_path())
