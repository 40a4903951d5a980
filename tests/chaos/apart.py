"""A trial under a parent of its own, which finds, counts and ends what the trial leaves behind."""

import ctypes
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from coterie.distributed.session_folder import SessionFolder

_FORK = multiprocessing.get_context("fork")
_SUBREAPER = 36
_GRACE_S = 30.0
"""Seconds that Ray's processes have to follow their driver, on a machine that is busy."""
_LOOK_S = 1.0
"""Seconds between two looks for processes."""
_YOUNG_S = 10.5
"""A start leaves folders alone that are younger: another process may be making them."""


@dataclass(frozen=True)
class Ended:
    """How a trial ended.

    Attributes:
        result: What it says, or "WRONG: " with what it raised or left behind.
        ending: Seconds until its last process was gone.
        folders: What it left in its temporary folder, until the next start.
    """

    result: str
    ending: float = 0.0
    folders: int = 0


def run_apart(attempt: Callable[[], str], limit: int) -> Ended:
    """Run a trial under a fork of this process, which has a temporary folder of its own.

    Args:
        attempt: The trial; says how it ended.
        limit: Seconds; a trial that takes longer hangs.
    """
    ended = _forked(lambda: _parent(attempt, limit))
    return ended if isinstance(ended, Ended) else Ended(f"WRONG: {ended}")


def _forked(work: Callable[[], object]) -> object:
    """Return what the work returned in a fork of this process, or how that ended."""
    receiver, sender = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_send, args=(work, sender))
    process.start()
    sender.close()
    with receiver:
        try:
            result = receiver.recv()
        except EOFError:
            process.join()
            return f"WRONG: its process ended with {process.exitcode}"
    process.join(_GRACE_S)
    return result


def _send(work: Callable[[], object], sender: Connection) -> None:
    sender.send(work())


def _parent(attempt: Callable[[], str], limit: int) -> Ended:
    """Run the trial in a child, whose orphans become this process's children."""
    ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a session that is ended leaves nothing either
    temporary = Path(tempfile.mkdtemp(prefix="c"))  # its sockets' paths have at most 107 characters
    os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
    os.environ.pop("RAY_TMPDIR", None)
    try:
        result = str(_forked(lambda: _try(attempt, limit)))
        ended = _end_processes(Ended(result))
        return _end_folders(ended, temporary)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _try(attempt: Callable[[], str], limit: int) -> str:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, _hangs)
    signal.alarm(limit)
    try:
        return attempt()
    except Exception:  # noqa: BLE001 - that is what is looked for
        return f"WRONG: {traceback.format_exc()}"
    finally:
        signal.alarm(0)


def _hangs(number: int, frame: object) -> None:
    raise TimeoutError("The trial takes too long.")


def _end_processes(ended: Ended) -> Ended:
    """Wait for the processes that are left; those that stay are told, and killed by id."""
    own, began = psutil.Process(), time.monotonic()
    while alive := _alive(own) or _alive_later(own):
        if time.monotonic() - began > _GRACE_S:
            told = ", ".join(_line(process) for process in alive)
            for process in alive:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(alive, 10)
            return _wrong(ended, f"{len(alive)} processes stay: {told}")
        time.sleep(0.1)
    return replace(ended, ending=time.monotonic() - began - _LOOK_S)


def _end_folders(ended: Ended, temporary: Path) -> Ended:
    """Count what is left in the temporary folder, and have the next start remove Coterie's."""
    ended = replace(ended, folders=len(list(temporary.iterdir())))
    if not (left := list(temporary.glob("coterie-*"))):
        return ended
    time.sleep(max(0.0, max(each.stat().st_mtime for each in left) + _YOUNG_S - time.time()))
    SessionFolder()
    stayed = [each.name for each in left if each.exists()]
    return _wrong(ended, f"folders stay: {', '.join(stayed)}") if stayed else ended


def _wrong(ended: Ended, why: str) -> Ended:
    """Return it as wrong, for this reason if it has none."""
    told = ended.result if ended.result.startswith("WRONG") else f"WRONG: {why}"
    return replace(ended, result=told, ending=_GRACE_S)


def _alive_later(own: psutil.Process) -> list[psutil.Process]:
    """Look again: a look misses a process whose parent ends while the look goes on."""
    time.sleep(_LOOK_S)
    return _alive(own)


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
