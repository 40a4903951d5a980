"""The process that starts a local Ray, and ends it when standard input ends."""

import contextlib
import json
import logging
import os
import select
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import AuthenticationError

from coterie.distributed.loopback import private
from coterie.distributed.session_folder import SessionFolder
from coterie.errors import RunError, reason

_LOOK_S = 0.5
_POLL_S = 0.1
_END_S = 5.0
_GRACE_S = 10.0


def main() -> None:
    """Start Ray, write its address or an error as a line of JSON, and wait for the end."""
    over = threading.Event()
    ready = threading.Event()
    others: list[int] = []
    threading.Thread(target=_watch, args=(over, ready, others), daemon=True).start()
    try:
        folder = SessionFolder()
        _leave_out(ray._private.node.Node)
        found = _start(folder)
    except RunError as error:
        found = {"error": "folder", "reason": str(error)}
    ready.set()
    _tell(found)
    if "error" in found:
        return
    node = ray._private.worker._global_node
    while not over.wait(_LOOK_S) and not node.dead_processes():
        pass
    died = not over.is_set()
    if died:  # the driver writes its checkpoint while the rest is still there
        over.wait(_GRACE_S)
    else:
        threading.Thread(target=_end_anyway, args=(folder, others), daemon=True).start()
        ray.shutdown()
    folder.close()
    if over.is_set():
        _end(others)
    if died:
        _kill_session()  # agents, which have names that do not tell the folder
        os._exit(0)  # Ray would wait for what has died


def _watch(over: threading.Event, ready: threading.Event, others: list[int]) -> None:
    """Wait for the end of standard input; if it comes before Ray is ready, end Ray's processes too.

    Each line names a process of the driver's that has to end with it.
    """
    for line in sys.stdin:
        with contextlib.suppress(OSError):  # it has ended
            others.append(os.pidfd_open(int(line)))
    over.set()
    if not ready.is_set():
        _kill_session()
        os._exit(1)


def _end_anyway(folder: SessionFolder, others: list[int]) -> None:
    """Kill those of Ray's processes that do not end in time, such as stopped ones, and exit."""
    time.sleep(_END_S)
    _kill_session()
    folder.close()
    _end(others)
    os._exit(0)


def _kill_session() -> None:
    """Kill Ray's processes; one that outlives its parent would try for a minute to reach Ray."""
    own = os.getpid()
    for pid in (int(process.name) for process in Path("/proc").glob("[0-9]*")):
        with contextlib.suppress(OSError):  # it has ended
            if pid != own == os.getsid(pid):  # the session that `LocalRay` has made
                os.kill(pid, signal.SIGKILL)


def _end(processes: list[int]) -> None:
    """Kill those of the driver's processes that have not ended in time, such as stopped ones."""
    ending = time.monotonic() + _END_S
    for process in processes:
        if not select.select([process], [], [], max(0.0, ending - time.monotonic()))[0]:
            signal.pidfd_send_signal(process, signal.SIGKILL)


def _start(folder: SessionFolder) -> dict[str, str]:
    # OpenTelemetry leaves a thread behind at each `ray.init`, which can crash the end of Python
    # (Ray 2.60). Without it OpenCensus exports Ray's own metrics, and ends with the connection.
    # Nobody reads them, and their port asks for no token.
    system = {
        "enable_open_telemetry": False,
        "enable_metrics_collection": False,
        "prestart_worker_first_driver": False,
        "agent_register_timeout_ms": 600_000,  # the driver's limit is shorter
    }
    try:
        with private():
            ray.init(
                address="local",
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _system_config=system,
                _temp_dir=str(folder.rays),
            )
    except AuthenticationError as error:
        return {"error": "authentication", "reason": error.message}
    except Exception as error:  # noqa: BLE001 - of many kinds, by what did not start in time
        return {"error": "start", "reason": reason(error), "folder": str(folder.path)}
    address = ray.get_runtime_context().gcs_address
    return {"address": address, "folder": str(folder.path)}


def _leave_out(node: Any) -> None:
    """Turn off what a local Ray does not need, and Ray's own limit of 30 seconds for its start.

    No autoscaler, no log monitor, no dashboard; the driver says how long the start may take.
    """
    start = node.start_ray_processes

    def wait(self: Any) -> None:
        start(self)
        while True:
            with contextlib.suppress(RuntimeError):  # it has not registered yet
                ray._private.services.get_node(self.gcs_address, self._node_id)
                return
            time.sleep(_POLL_S)

    node.start_ray_processes = wait
    node.start_monitor = node.start_log_monitor = lambda self: None
    node.start_api_server = lambda self, **options: None


def _tell(found: dict[str, str]) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
