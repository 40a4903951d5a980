"""Writes files atomically: readers see the old content or all of the new one."""

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_UMASK = os.umask(0)
os.umask(_UMASK)  # it can only be read by setting it
_HALF = re.compile(r"\.coterie-(\d+)-[0-9a-f]{16}\.tmp")


def is_half(path: Path) -> bool:
    """Return whether this is the name of a temporary folder of `replacing`."""
    return _HALF.fullmatch(path.name) is not None


def is_left(path: Path) -> bool:
    """Return whether a temporary folder was left by a process of this machine that has ended."""
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

    Missing parent folders are made. The temporary path lies in a folder that only its owner can
    enter. Folders are held open, so that another user who may write to the parent cannot lead what
    is written elsewhere. If writing fails, `path` stays unchanged. Its mode is the umask's, or with
    `private` for the owner alone.

    Raises:
        OSError: If it cannot be written, or `path` is a device, a pipe or a socket.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with _opened_folder(path.parent) as parent:
            _check_replaceable(path.name, parent)
            with _private_folder(parent) as (name, folder):
                yield _path_of(folder, path.with_name(name), parent) / path.name
                _finish(path.name, folder, 0o600 if private else 0o666 & ~_UMASK)
                os.replace(path.name, path.name, src_dir_fd=folder, dst_dir_fd=parent)
            os.fsync(parent)  # otherwise a power cut may undo the renaming
    except OSError as error:
        error.filename = str(path)  # a failed write does not name its file
        raise


@contextmanager
def _opened_folder(path: Path | str, parent: int | None = None) -> Iterator[int]:
    """Open a folder; one in an open parent must not be a link."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if parent is None else os.O_NOFOLLOW)
    folder = os.open(path, flags, dir_fd=parent)
    try:
        yield folder
    finally:
        os.close(folder)


@contextmanager
def _private_folder(parent: int) -> Iterator[tuple[str, int]]:
    """Make and open a folder that only this user can enter, and remove it afterwards.

    Whoever owns the parent may have put another folder of this user's in its place, so it has to be
    empty, and nothing but what was written here is removed.
    """
    name = f".coterie-{os.getpid()}-{secrets.token_hex(8)}.tmp"
    os.mkdir(name, 0o700, dir_fd=parent)
    with _opened_folder(name, parent) as folder:
        made = os.fstat(folder)
        try:
            filled = os.listdir(folder)  # noqa: PTH208 - of a descriptor
            if filled or made.st_mode & 0o077 or made.st_uid != _own_id(folder):
                raise OSError(errno.EPERM, "another user has replaced a folder in it")
            try:
                yield name, folder
            finally:
                for left in os.listdir(folder):  # noqa: PTH208 - of a descriptor
                    os.unlink(left, dir_fd=folder)
        finally:
            with suppress(OSError):  # it has been moved, or is another one with files in it
                if os.stat(name, dir_fd=parent, follow_symlinks=False).st_ino == made.st_ino:
                    os.rmdir(name, dir_fd=parent)


def _own_id(folder: int) -> int:
    """Return this user's id as a folder's file system reports it; network ones may change it."""
    probe = os.open(".owner", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
    try:
        return os.fstat(probe).st_uid
    finally:
        os.close(probe)
        os.unlink(".owner", dir_fd=folder)


def _path_of(folder: int, path: Path, parent: int) -> Path:
    """Return a path to an open folder that stays valid when folders are renamed.

    Where the system has none, the folder's own path will do if nobody else owns the parent.
    """
    held = Path(f"/proc/self/fd/{folder}")
    if held.is_dir():
        return held
    if os.fstat(parent).st_uid not in {0, os.fstat(folder).st_uid}:
        raise OSError(errno.EPERM, "it is another user's, which is not safe without /proc")
    return path


def _check_replaceable(name: str, parent: int) -> None:
    """Refuse to replace a device, a pipe or a socket."""
    with suppress(FileNotFoundError):
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            raise OSError(errno.EEXIST, "it is not a regular file, and is not replaced")


def _finish(name: str, folder: int, mode: int) -> None:
    """Set a written file's mode and sync it to disk."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EPERM, "it is no regular file")
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text_atomically(path: Path, text: str) -> None:
    """Write a UTF-8 file atomically, see `replacing`; what is not UTF-8 is escaped."""
    with replacing(path) as temporary:
        temporary.write_bytes(text.encode("utf-8", "backslashreplace"))
