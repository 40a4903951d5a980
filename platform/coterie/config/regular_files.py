"""Opens regular files only: a pipe would block, and a device or /proc may never end."""

import errno
import hashlib
import io
import os
import stat
from pathlib import Path


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file to read its bytes; links are followed.

    Raises:
        OSError: If it cannot be opened.
        io.UnsupportedOperation: An OSError and a ValueError, if it is another kind of file, or lies
            in the system's own file systems.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_dev in system_devices():
        os.close(descriptor)
        raise io.UnsupportedOperation(errno.EINVAL, "not a regular file")
    return os.fdopen(descriptor, "rb")


def sha256(path: Path) -> str:
    """Return the SHA-256 of a regular file.

    Raises:
        OSError: As `open_regular`.
    """
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def system_devices() -> set[int]:
    """Return the devices of system file systems such as /proc, whose files may never end."""
    return {Path(path).stat().st_dev for path in ("/proc", "/sys") if Path(path).is_dir()}
