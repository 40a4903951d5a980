"""Asks the fork server for a worker: Ray runs this file where it would run Python.

It imports nothing but a part of the standard library, and ends once the worker is there.
"""

import json
import os
import socket
import sys

_PATIENCE_S = 45.0
"""Seconds to wait for the fork server, which may still be importing; Ray waits for 60 s."""


def main() -> None:
    """Have the fork server run Python's arguments, or run them in this process if there is none."""
    address, *arguments = sys.argv[1:]
    with open("/proc/self/oom_score_adj") as file:  # noqa: PTH123 - pathlib costs 10 ms
        out_of_memory = file.read()
    request = {
        "arguments": arguments,
        "environment": dict(os.environ),
        "folder": os.getcwd(),  # noqa: PTH109
        "niceness": os.nice(0),
        "out_of_memory": out_of_memory,
    }
    if not _forked(address, json.dumps(request).encode() + b"\n"):
        os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606


def _forked(address: str, request: bytes) -> bool:
    """Send the request with this process's standard streams; return whether it was served."""
    try:
        with socket.socket(socket.AF_UNIX) as fork_server:
            fork_server.settimeout(_PATIENCE_S)
            fork_server.connect(address)
            sent = socket.send_fds(fork_server, [request], [0, 1, 2])
            if sent < len(request):  # the fork server may have answered already, and closed its end
                fork_server.sendall(request[sent:])
            return bool(fork_server.recv(1))
    except OSError:  # it has ended, or was stopped
        return False


if __name__ == "__main__":
    main()
