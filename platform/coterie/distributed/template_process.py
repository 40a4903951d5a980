"""The template's process: forks a worker at each request.

Ray itself is imported behind the fork: a fork has none of the threads that Ray starts.
"""

import atexit
import contextlib
import gc
import json
import logging
import os
import runpy
import selectors
import shutil
import signal
import socket
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

_STREAMS = 3


def main() -> None:
    """Import what an actor needs, then serve until standard input ends; a fork ends as a worker."""
    import lightning  # noqa: F401

    from coterie.execution.build import warm_up

    warm_up()
    descriptor, folder = sys.argv[1:]
    _serve(socket.socket(fileno=int(descriptor)), 0, Path(folder))


def run_fork(listener: socket.socket, ended: int, folder: Path) -> NoReturn:
    """Serve in a fork of a driver, until the pipe ends; the driver's code is not returned to."""
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(_STREAMS):  # or who reads the driver's output would wait for this process
        os.dup2(nowhere, stream)
    atexit._clear()
    logging.getLogger().handlers.clear()
    status = 1
    try:
        _serve(listener, ended, folder)
        status = 0
    except SystemExit as error:  # of a worker
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - the end of this process
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        os._exit(status)


def _serve(listener: socket.socket, ended: int, folder: Path) -> None:
    gc.collect()
    gc.freeze()  # never looked at again, so it stays shared
    with listener:
        request = serve(listener, ended)
    if request is None:
        shutil.rmtree(folder)
    else:
        become(request)


def serve(listener: socket.socket, ended: int) -> Mapping[str, Any] | None:
    """Fork a process for each request.

    Args:
        listener: Takes requests.
        ended: A pipe that nobody writes into; the template ends with it.

    Returns:
        The request, in a fork; None in the template, when every process that was forked is killed.
    """
    waiting = selectors.DefaultSelector()
    waiting.register(ended, selectors.EVENT_READ)
    waiting.register(listener, selectors.EVENT_READ)
    forks: dict[int, int] = {}
    while True:
        for key, _ in waiting.select():
            if key.fd == ended:
                for fork in forks:
                    signal.pidfd_send_signal(fork, signal.SIGKILL)
                return None
            if key.fileobj is listener:
                request, process = _accept(listener)
                if process == 0:
                    waiting.close()
                    for descriptor in {*forks, ended} - set(range(_STREAMS)):
                        os.close(descriptor)
                    return request
                if process is not None:
                    fork = os.pidfd_open(process)
                    forks[fork] = process
                    waiting.register(fork, selectors.EVENT_READ)
            else:  # a fork has ended
                os.waitpid(forks.pop(key.fd), 0)
                waiting.unregister(key.fd)
                os.close(key.fd)


def _accept(listener: socket.socket) -> tuple[Mapping[str, Any], int | None]:
    """Take a request and fork.

    Returns:
        The request, and the id of the fork: 0 in the fork itself, None if the request has ended
        before it was whole.
    """
    asking, _ = listener.accept()
    streams: list[int] = []
    with asking:
        received = _received(asking, streams)
        process = os.fork() if received.endswith(b"\n") and len(streams) == _STREAMS else None
        if process == 0:
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            _answer(asking)
        for stream in streams:
            os.close(stream)
        return json.loads(received) if process == 0 else {}, process


def _received(asking: socket.socket, streams: list[int]) -> bytes:
    """Read a request and add its streams; it lacks its last byte if who asked has ended."""
    received = b""
    with contextlib.suppress(ConnectionError):
        received, descriptors, _, _ = socket.recv_fds(asking, 1 << 16, _STREAMS)
        streams.extend(descriptors)
        while received and not received.endswith(b"\n"):
            more = asking.recv(1 << 16)
            if not more:
                break
            received += more
    return received


def _answer(asking: socket.socket) -> None:
    """Say that this worker is there, or end it: Ray may have ended who asked, and awaits none."""
    try:
        asking.send(b"1")
    except ConnectionError:
        os._exit(0)


def become(request: Mapping[str, Any]) -> None:
    """Run the program that was asked for as a new Python would, in this process."""
    import numpy as np

    os.setpgid(0, 0)  # Ray ends a worker's group with it
    np.random.seed()  # noqa: NPY002 - else every fork would draw the same numbers
    Path("/proc/self/oom_score_adj").write_text(request["out_of_memory"])
    os.setpriority(os.PRIO_PROCESS, 0, request["niceness"])
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    program = request["arguments"][0]
    sys.argv = request["arguments"]
    sys.path.insert(0, str(Path(program).parent))
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
