"""A claim on a run directory, so that two runs never write in one."""

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.errors import ConfigError

LOCK = ".lock"
"""The file in a run directory that is locked; it stays there, with its last holder's process id."""

_log = logging.getLogger(__name__)


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold a folder for the life of a run.

    The kernel releases the lock with the process, whatever ends it (flock(2)).

    Args:
        folder: The run directory, which exists.

    Raises:
        ConfigError: If another run holds it.
    """
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _lock(descriptor, folder)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        yield
    finally:
        os.close(descriptor)


def check_unclaimed(folder: Path) -> None:
    """Refuse a folder in which a run is under way.

    Raises:
        ConfigError: If a run holds it.
    """
    if not (folder / LOCK).is_file():
        return
    descriptor = os.open(folder / LOCK, os.O_RDONLY)
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
    except OSError as error:  # some network file systems have no locks: no reason to run nowhere
        _log.warning(
            "%s cannot be locked (%s): see to it that no other run writes in it.",
            folder, error.strerror,
        )  # fmt: skip
