"""Locks run directories, so that two runs never write to the same one.

Whoever may open a file may lock it, also if only to read it. So the file opens for its owner alone.
"""

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from coterie.errors import ConfigError
from coterie.tracking.atomic import is_running
from coterie.tracking.paths import open_own, part_links

LOCK = ".lock"
"""The file in a run directory that is locked; it stays there with the last process id."""

_log = logging.getLogger(__name__)


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Lock a folder while a run writes to it.

    The kernel releases the lock with the process, however it ends (flock(2)).

    Raises:
        ConfigError: If another run holds the lock.
    """
    descriptor = _open_locked(folder)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold a lock file once no other process of this user does, and remove it afterwards.

    Where the file system has no locks it goes on at once.
    """
    descriptor = _open_alone(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _open_alone(path: Path) -> int:
    """Open and lock the lock file, or a new one if its last holder has removed it."""
    while True:
        descriptor = open_own(path, os.O_RDWR | os.O_CREAT, mode=0o600)
        _close_to_others(descriptor)
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.lstat()):
                return descriptor
        os.close(descriptor)


def _open_locked(folder: Path) -> int:
    """Open and lock a folder's lock file; one that is hard-linked elsewhere is replaced first."""
    while True:
        descriptor = open_own(folder / LOCK, os.O_RDWR | os.O_CREAT, mode=0o600)
        try:
            _close_to_others(descriptor)
            _lock(descriptor, folder)
            part_links(folder / LOCK, private=True)
            if os.path.samestat(os.fstat(descriptor), (folder / LOCK).stat()):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def check_unclaimed(folder: Path) -> None:
    """Refuse a folder that a run is writing to."""
    if not (folder / LOCK).is_file() or (folder / LOCK).is_symlink():
        return
    descriptor = open_own(folder / LOCK, os.O_RDONLY)
    try:
        _lock(descriptor, folder)
    finally:
        os.close(descriptor)


def is_claimed(folder: Path) -> bool:
    """Return whether a run is writing to a folder."""
    try:
        check_unclaimed(folder)
    except ConfigError:
        return True
    return False


def _close_to_others(descriptor: int) -> None:
    """Close the file to other users, since a copied one may be open to them."""
    status = os.fstat(descriptor)
    if status.st_mode & 0o077 and status.st_uid == os.geteuid():
        with suppress(OSError):  # some file systems have no modes
            os.fchmod(descriptor, 0o600)


def _held(descriptor: int) -> str:
    """Return who holds the lock, as the end of a sentence with a remedy."""
    holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
    if holder.isdecimal() and is_running(int(holder)):
        return f"another run (process {holder}) writes in it; wait for it or choose another folder."
    return (
        f"its {LOCK} is locked, by a run on another machine or by another user's program; wait for "
        "it, or go on in a copy of the folder."
    )


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigError(f"run_dir={folder}: {_held(descriptor)}") from error
    except OSError as error:  # some network file systems have no locks; the run goes on without
        _log.warning(
            "%s cannot be locked (%s): make sure that no other run writes to it.",
            folder,
            error.strerror,
        )
