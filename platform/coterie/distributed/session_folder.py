"""The folder of a local Ray: for its user alone, with a name that cannot be guessed.

Ray makes the folders in it for everybody to write into. Whoever may do that can lead its logs to
files of the user, take its sockets' places and change the code that it is about to run.
"""

import contextlib
import errno
import fcntl
import grp
import os
import pwd
import shutil
import signal
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from coterie.distributed.temp_folder import temp_folder
from coterie.errors import RunError

_PREFIX = "coterie-"
_LOCK = "lock"
_RAYS = "ray"
SOCKET = "socket"
"""The file of a socket: the folder is in use as long as somebody listens on it."""
_LEAST = 32 * 2**20
"""Bytes of room for Ray's logs, without which Ray fails without saying why."""
_NEW_S = 10.0
"""Seconds in which another process may just be making a new folder."""

_EVERYBODY = ["0", "0", str(2**32 - 1)]
"""The users outside of containers: all ids, each as itself."""


class SessionFolder:
    """A new folder, which is removed when this process ends.

    Attributes:
        path: Where it is, see `temp_folder`.
        rays: The folder in it to give Ray, which lets everybody write into what it is given.
    """

    def __init__(self) -> None:
        """Make the folder, and remove this user's abandoned ones.

        Raises:
            ConfigError: If no folder is short enough for sockets.
            RunError: If others may rename what is in it, or it is full.
        """
        remove_left()
        self.path = new_folder()
        self.rays = self.path / _RAYS
        self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def close(self) -> None:
        """End what still runs from the folder, and remove all but its logs."""
        _end_processes(self.path)
        for session in self.rays.glob("session_*"):
            for part in [] if session.is_symlink() else session.iterdir():
                if part.name != "logs":
                    _remove(part)

    def remove(self) -> None:
        """Remove it, and give up its lock."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


@contextlib.contextmanager
def working_folder() -> Iterator[Path]:
    """Make a folder and remove it afterwards; the next start removes that of a killed process.

    Raises:
        ConfigError, RunError: As for `SessionFolder`.
    """
    folder = SessionFolder()
    try:
        yield folder.path
    finally:
        folder.remove()


def new_folder() -> Path:
    """Make a folder; a socket `SOCKET` in it will mark it as in use.

    Raises:
        RunError: As for `SessionFolder`.
    """
    root = _root()
    if told := no_room(root):
        raise RunError(f"Ray cannot start: {told}.")
    return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))


def remove_left() -> None:
    """Remove this user's abandoned folders, and end what runs from them.

    Raises:
        ConfigError: As for `SessionFolder`.
        RunError: As for `SessionFolder`.
    """
    for left in _left(_root()):
        discard(left)


def no_room(folder: Path) -> str:
    """Return the end of a sentence, with a remedy, if a folder has too little room for Ray."""
    free = shutil.disk_usage(folder).free if folder.is_dir() else _LEAST
    if free >= _LEAST:
        return ""
    return (
        f"{folder} has {free / 2**20:.0f} MiB free, and Ray needs {_LEAST / 2**20:.0f} or more for "
        "its logs; make room there, or set RAY_TMPDIR to another folder"
    )


def discard(path: Path) -> None:
    """End the processes that run from a folder, and remove it."""
    _end_processes(path)
    shutil.rmtree(path, ignore_errors=True)  # what is left, the next start removes


def _root() -> Path:
    root = temp_folder()
    real = root.resolve()  # kept apart, because it may be too long for sockets
    trusted = {0, os.getuid(), *_unknown_ids()}
    for folder in (root, *root.parents, real, *real.parents):
        status = folder.stat()
        if not {status.st_uid, folder.lstat().st_uid} <= trusted:  # of a link, its own too
            raise RunError(
                f"RAY_TMPDIR={root}: {folder} belongs to another user, who may rename what is in "
                "it; give a folder that you own."
            )
        others = stat.S_IWOTH if _is_own_group(status.st_gid) else stat.S_IWOTH | stat.S_IWGRP
        if status.st_mode & others and not status.st_mode & stat.S_ISVTX:
            who = "everybody" if status.st_mode & stat.S_IWOTH else "its group"
            raise RunError(
                f"RAY_TMPDIR={root}: {who} may rename what is in {folder}; chmod +t that folder, "
                "or give another."
            )
    return root


def _unknown_ids() -> list[int]:
    """Return the id that a container shows for all users that it does not map, such as root."""
    known = Path("/proc/self/uid_map")
    if not known.is_file() or known.read_text().split() == _EVERYBODY:
        return []
    return [int(Path("/proc/sys/kernel/overflowuid").read_text())]


def _is_own_group(group: int) -> bool:
    """Return whether a group is the user's alone, as far as its name and members tell."""
    with contextlib.suppress(KeyError):  # an id without a name
        user, found = pwd.getpwuid(os.getuid()), grp.getgrgid(group)
        return found.gr_name == user.pw_name and {*found.gr_mem} <= {user.pw_name}
    return False


def _left(root: Path) -> Iterator[Path]:
    """Return this user's folders whose process has ended."""
    for path in root.glob(f"{_PREFIX}????????"):
        with contextlib.suppress(OSError):
            status = path.lstat()
            ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
            if ours and time.time() - status.st_mtime > _NEW_S and _free(path):
                yield path


def _free(path: Path) -> bool:
    if (path / SOCKET).is_socket():
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(1.0)
            return asking.connect_ex(str(path / SOCKET)) == errno.ECONNREFUSED
    if {each.name for each in path.iterdir()} <= {_RAYS}:
        return True  # its process was killed before it had a lock, or an ending Ray made it again
    lock = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


def _end_processes(path: Path) -> None:
    """Kill this user's processes whose command line names a file in the folder."""
    wanted, own = f"{path}/".encode(), os.getpid()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            ours = process.stat().st_uid == os.getuid() and int(process.name) != own
            if ours and wanted in (process / "cmdline").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
