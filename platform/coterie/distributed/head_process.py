"""The process that starts a local Ray, and ends it when standard input ends."""

import json
import logging
import os
import sys
import threading
from typing import Any

import ray
from ray.exceptions import AuthenticationError

from coterie.distributed.loopback import private
from coterie.errors import reason

_LOOK_S = 0.5


def main() -> None:
    """Start Ray, write its address or an error as a line of JSON, and wait for the end."""
    over = threading.Event()
    ready = threading.Event()
    threading.Thread(target=_watch, args=(over, ready), daemon=True).start()
    found = _start()
    ready.set()
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    if "error" in found:
        return
    node = ray._private.worker._global_node
    while not over.wait(_LOOK_S) and not node.dead_processes():
        pass
    ray.shutdown()


def _watch(over: threading.Event, ready: threading.Event) -> None:
    """Wait for the end of standard input; until Ray is ready, its processes end with this one."""
    sys.stdin.read()
    over.set()
    if not ready.is_set():
        os._exit(1)


def _start() -> dict[str, str]:
    # OpenTelemetry leaves a thread behind at each `ray.init`, which can crash the end of Python
    # (Ray 2.60). Without it OpenCensus exports Ray's own metrics, and ends with the connection.
    system = {"enable_open_telemetry": False, "prestart_worker_first_driver": False}
    _leave_out(ray._private.node.Node)
    try:
        with private():
            ray.init(
                address="local",
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _system_config=system,
            )
    except AuthenticationError as error:
        return {"error": "authentication", "reason": error.message}
    except Exception as error:  # noqa: BLE001 - of many kinds, by what did not start in time
        return {"error": "start", "reason": reason(error)}
    return {"address": ray.get_runtime_context().gcs_address}


def _leave_out(node: Any) -> None:
    """Start no autoscaler, no log monitor and no dashboard: a local Ray has no use for them."""
    node.start_monitor = node.start_log_monitor = lambda self: None
    node.start_api_server = lambda self, **options: None


if __name__ == "__main__":
    main()
