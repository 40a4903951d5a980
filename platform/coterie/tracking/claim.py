"""Locks run directories, so that two runs never write to the same one."""

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.errors import ConfigError
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


def _open_locked(folder: Path) -> int:
    """Open and lock the file that is there, which no other folder has too."""
    while True:
        descriptor = open_own(folder / LOCK, os.O_RDWR | os.O_CREAT)
        try:
            _lock(descriptor, folder)
            part_links(folder / LOCK)
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


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        raise ConfigError(
            f"run_dir={folder}: another run (process {holder}) writes in it; wait for it or choose "
            "another folder."
        ) from error
    except OSError as error:  # some network file systems have no locks; the run goes on without
        _log.warning(
            "%s cannot be locked (%s): make sure that no other run writes to it.",
            folder,
            error.strerror,
        )
