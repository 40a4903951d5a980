"""The process of the fork server, which forks a worker at each request.

Ray itself is imported behind the fork: a fork has none of the threads that Ray starts.
"""

import atexit
import contextlib
import ctypes
import gc
import json
import logging
import os
import runpy
import selectors
import shutil
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

_STREAMS = 3
_PATIENCE_S = 2.0
"""Seconds that a request may take to arrive, while other requests wait."""
_ADOPT_ORPHANS = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2)."""
_CREDENTIALS = struct.Struct("3i")
"""Process, user and group of the other end of a socket."""


def main() -> None:
    """Import what actors need, then serve until standard input ends; forks continue as workers."""
    import lightning  # noqa: F401

    from coterie.execution.build import warm_up

    warm_up()
    descriptor, folder = sys.argv[1:]
    _serve(socket.socket(fileno=int(descriptor)), 0, Path(folder))


def run_fork(listener: socket.socket, ended: int, folder: Path) -> NoReturn:
    """Serve in a fork of a driver until the pipe ends, and never return to the driver's code."""
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    # Who reads the driver's output would wait for this process, and so would the local Ray, which
    # ends with its standard input. Replaced, not closed: Python's objects close their own.
    for descriptor in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 - fds are numbers
        if descriptor not in {listener.fileno(), ended, nowhere}:
            with contextlib.suppress(OSError):  # that of the listing is closed
                os.dup2(nowhere, descriptor, inheritable=descriptor < _STREAMS)
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
        ended: A pipe that nobody writes into; the fork server ends with it.

    Returns:
        The request, in a fork; None in the fork server, when every process that was forked is
        killed.
    """
    # What a worker leaves outside of its group and session becomes a child of this process.
    ctypes.CDLL(None).prctl(_ADOPT_ORPHANS, 1, 0, 0, 0)
    died = _tell_of_deaths()
    waiting = selectors.DefaultSelector()
    waiting.register(died, selectors.EVENT_READ)
    waiting.register(ended, selectors.EVENT_READ)
    waiting.register(listener, selectors.EVENT_READ)
    forks: dict[int, int] = {}
    while True:
        for key, _ in waiting.select():
            if key.fd == ended:
                for fork, worker in forks.items():
                    signal.pidfd_send_signal(fork, signal.SIGKILL)
                    _end_group(worker)
                _end_children()
                return None
            if key.fd == died:
                os.read(died, 1 << 16)
                _bury_orphans({*forks.values()})
            elif key.fileobj is listener:
                request, process = _accept(listener)
                if process == 0:
                    waiting.close()
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    os.close(signal.set_wakeup_fd(-1))
                    for descriptor in {*forks, ended, died} - set(range(_STREAMS)):
                        os.close(descriptor)
                    return request
                if process is not None:
                    fork = os.pidfd_open(process)
                    forks[fork] = process
                    waiting.register(fork, selectors.EVENT_READ)
            else:  # a fork has ended
                _end_group(forks[key.fd])
                os.waitpid(forks.pop(key.fd), 0)
                waiting.unregister(key.fd)
                os.close(key.fd)
                _bury_orphans({*forks.values()})  # which may have ended before it


def _end_group(process: int) -> None:
    """Kill a worker's process group, before its id can be used again.

    Copies of its connections would stay open there, and Ray would not notice that it has ended.
    """
    with contextlib.suppress(ProcessLookupError):  # nothing, or it was no worker yet
        os.killpg(process, signal.SIGKILL)


def _tell_of_deaths() -> int:
    """Return a pipe that becomes readable when a child has ended."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reading


def _end_children() -> None:
    """Kill all children of this process, and the orphans that become its children meanwhile."""
    ending = time.monotonic() + _PATIENCE_S
    while time.monotonic() < ending:
        for child in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:  # there is none
            return
        time.sleep(0.01)


def _children() -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            status = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(status[1]) == os.getpid():
                found.append(int(folder.name))
    return found


def _bury_orphans(workers: set[int]) -> None:
    """Reap orphans that have ended, since no other process does."""
    with contextlib.suppress(ChildProcessError):
        ask = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while (dead := os.waitid(os.P_ALL, 0, ask)) is not None and dead.si_pid not in workers:
            os.waitpid(dead.si_pid, 0)


def _accept(listener: socket.socket) -> tuple[Mapping[str, Any], int | None]:
    """Accept a request and fork.

    Returns:
        The request, and the id of the fork: 0 in the fork itself, None if the request has ended
        before it was whole.
    """
    asking, _ = listener.accept()
    streams: list[int] = []
    with asking:
        asking.settimeout(_PATIENCE_S)
        received = _received(asking, streams) if _is_ours(asking) else b""
        process = os.fork() if received.endswith(b"\n") and len(streams) == _STREAMS else None
        if process == 0:
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            _answer(asking)
        for stream in streams:
            os.close(stream)
        return json.loads(received) if process == 0 else {}, process


def _is_ours(asking: socket.socket, user: int | None = None) -> bool:
    """Return whether a process of this user, or of another given user, has sent the request."""
    told = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(told)[1] == (os.getuid() if user is None else user))


def _received(asking: socket.socket, streams: list[int]) -> bytes:
    """Read a request and its streams; it is incomplete if its sender has ended."""
    received, ending = b"", time.monotonic() + _PATIENCE_S
    with contextlib.suppress(OSError):  # it has ended, or is silent
        received, descriptors, _, _ = socket.recv_fds(asking, 1 << 16, _STREAMS)
        streams.extend(descriptors)
        while received and not received.endswith(b"\n") and time.monotonic() < ending:
            more = asking.recv(1 << 16)
            if not more:
                break
            received += more
    return received


def _answer(asking: socket.socket) -> None:
    """Confirm that this worker runs, or end it if Ray has ended the process that asked for it."""
    try:
        asking.send(b"1")
    except OSError:
        os._exit(0)


def become(request: Mapping[str, Any]) -> None:
    """Run the requested program in this process as a new Python would."""
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
