"""Writes files atomically: readers see the old content or all of the new one."""

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_UMASK = os.umask(0)
os.umask(_UMASK)  # it can only be read by setting it
_HALF = re.compile(r"\..+\.(\d+)\.tmp")


def temporary_name(path: Path) -> Path:
    """Return the hidden file beside `path` that is written before it is renamed."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def is_half(path: Path) -> bool:
    """Return whether this is a temporary file of `temporary_name`."""
    return _HALF.fullmatch(path.name) is not None


def is_left(path: Path) -> bool:
    """Return whether this is a temporary file of a process of this machine that has ended."""
    half = _HALF.fullmatch(path.name)
    return half is not None and not is_running(int(half[1]))


def is_running(process: int) -> bool:
    """Return whether this machine may have a process of this id, also another user's."""
    try:
        os.kill(process, 0)  # sends nothing
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # another user's process, or no process id
        return True
    return True


@contextmanager
def replacing(path: Path, *, private: bool = False) -> Iterator[Path]:
    """Give a temporary path to write to, then sync it to disk and rename it to `path`.

    Missing parent folders are made. The file is made before it is written, so that in a folder with
    the sticky bit nobody else can put a link in its place. If writing fails, `path` stays
    unchanged. Its mode is the umask's, or with `private` for the owner alone.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path)
    temporary.unlink(missing_ok=True)
    try:
        made = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        owner = os.fstat(made).st_uid
        os.close(made)
        yield temporary
        _finish(temporary, owner, 0o600 if private else 0o666 & ~_UMASK)
        temporary.replace(path)
    except OSError as error:
        error.filename = str(path)  # a failed write does not name its file
        raise
    finally:
        temporary.unlink(missing_ok=True)
    _sync(path.parent)  # otherwise a power cut may undo the renaming


def _finish(temporary: Path, owner: int, mode: int) -> None:
    """Set a written file's mode and sync it to disk, unless another user has put it there."""
    descriptor = os.open(temporary, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != owner:
            raise OSError(errno.EPERM, "another user has replaced it")
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text_atomically(path: Path, text: str) -> None:
    """Write a UTF-8 file atomically, see `replacing`; what is not UTF-8 is escaped."""
    with replacing(path) as temporary:
        temporary.write_bytes(text.encode("utf-8", "backslashreplace"))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
