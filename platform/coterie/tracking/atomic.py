"""Files that at any moment have their old content or all of the new one."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HALF = re.compile(r"\..+\.(\d+)\.tmp")


def temporary_name(path: Path) -> Path:
    """Where a file is written before it takes its name: beside it, hidden, with the process id."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def is_half(path: Path) -> bool:
    """Whether its name is one of `temporary_name`: what a killed process left."""
    return _HALF.fullmatch(path.name) is not None


def is_left(path: Path) -> bool:
    """Whether it is the half of a file whose process is gone; one of another machine looks so."""
    half = _HALF.fullmatch(path.name)
    if half is None:
        return False
    try:
        os.kill(int(half[1]), 0)  # sends nothing
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # it lives, and is somebody else's; or that is no process
        return False
    return False


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a name to write to; what is written there goes to the disk and takes `path` at once.

    Missing parent folders are made. Where writing fails, `path` stays as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path)
    try:
        yield temporary
        _sync(temporary)
        temporary.replace(path)
    except OSError as error:
        error.filename = str(path)  # a write that fails does not say where
        raise
    finally:
        temporary.unlink(missing_ok=True)
    _sync(path.parent)  # without it a power cut may undo the name, not the content


def write_text_atomically(path: Path, text: str) -> None:
    """Write a UTF-8 file so that it has its old content or all of the new one; see `replacing`."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
