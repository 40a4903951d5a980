"""A trial in a process of its own; what it leaves behind is found, told and ended by id."""

import ctypes
import multiprocessing
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection

import psutil

_FORK = multiprocessing.get_context("fork")
_SUBREAPER = 36
_GRACE_S = 15.0
"""Seconds that Ray's processes have to follow their driver."""


def run_apart(attempt: Callable[[], str], limit: int) -> str:
    """Run a trial in a fork of this process, whose orphans become this process's children.

    Args:
        attempt: The trial; says how it ended.
        limit: Seconds; a trial that takes longer hangs.

    Returns:
        What the trial says, or "WRONG: " with what it raised or left behind.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)
    receiver, sender = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_try, args=(attempt, limit, sender))
    process.start()
    sender.close()
    try:
        result = receiver.recv()
    except EOFError:
        process.join()
        result = f"WRONG: the trial's process ended with {process.exitcode}"
    process.join(_GRACE_S)
    left = _end_left()
    return result if not left or result.startswith("WRONG") else f"WRONG: left {', '.join(left)}"


def _try(attempt: Callable[[], str], limit: int, sender: Connection) -> None:
    """Send how the trial ended."""
    signal.signal(signal.SIGALRM, _hangs)
    signal.alarm(limit)
    try:
        result = attempt()
    except Exception:  # noqa: BLE001 - that is what is looked for
        result = f"WRONG: {traceback.format_exc()}"
    finally:
        signal.alarm(0)
    sender.send(result)


def _hangs(number: int, frame: object) -> None:
    raise TimeoutError("The trial takes too long.")


def _end_left() -> list[str]:
    """Command lines of the processes that are left after a while; none is left then."""
    own, ending = psutil.Process(), time.monotonic() + _GRACE_S
    while alive := _alive(own):
        if time.monotonic() > ending:
            told = [_line(process) for process in alive]
            for process in alive:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(alive, 10)
            return told
        time.sleep(0.1)
    return []


def _alive(own: psutil.Process) -> list[psutil.Process]:
    """Descendants that have not ended; those that have are reaped."""
    found = []
    for process in own.children(recursive=True):
        with suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
            elif process.ppid() == own.pid:
                process.wait(0)
    return found


def _line(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())[:100]
    return "a process that has ended since"
