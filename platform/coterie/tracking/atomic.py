"""Writes files atomically: readers see the old content or all of the new one."""

import os
import re
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

    Missing parent folders are made. A link at the temporary path is not followed. If writing
    fails, `path` stays unchanged. Its mode is the umask's, or with `private` for the owner alone.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path)
    temporary.unlink(missing_ok=True)
    try:
        if private:
            os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        yield temporary
        temporary.chmod(0o600 if private else 0o666 & ~_UMASK)
        _sync(temporary)
        temporary.replace(path)
    except OSError as error:
        error.filename = str(path)  # a failed write does not name its file
        raise
    finally:
        temporary.unlink(missing_ok=True)
    _sync(path.parent)  # otherwise a power cut may undo the renaming


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
