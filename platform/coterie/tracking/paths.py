"""Paths that users give, and folders that runs can write to."""

import errno
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from coterie.config.given_path import given_path
from coterie.errors import ConfigError
from coterie.tracking.atomic import replacing

_log = logging.getLogger(__name__)

MODE = 0o775
"""The mode of a new folder, also where the umask would open it to all."""
ROOT_VARIABLE = "COTERIE_RUNS"
"""Environment variable with the default root of run directories."""


def local_path(key: str, given: str) -> Path:
    """Read a path or a file:// URI."""
    if "://" not in given:
        return given_path(key, given)
    parts = urlsplit(given)
    if parts.scheme != "file" or parts.netloc not in {"", "localhost"}:
        raise ConfigError(f"{key}={given}: give a path or a file:///… URI; mount remote storage.")
    return Path(unquote(parts.path))


def default_root(*, job: bool) -> Path:
    """Return `$COTERIE_RUNS` or `runs`; a submitted job needs the first, as an absolute path."""
    given = os.environ.get(ROOT_VARIABLE, "")
    if not job:
        return local_path(ROOT_VARIABLE, given or "runs").absolute()
    root = local_path(ROOT_VARIABLE, given) if given else Path()
    if not root.is_absolute():
        raise ConfigError(
            f"{ROOT_VARIABLE}={given}: a submitted job's working directory is deleted, so set "
            f"{ROOT_VARIABLE} in the runtime environment, or run_dir, to an absolute path."
        )
    return root


def check_contained(key: str, folder: Path) -> None:
    """Refuse a run's folder with links to elsewhere, where the run would write or delete.

    A tracker's own links inside of the folder are left alone, and those of W&B to its logs, which
    lie in the user's cache; it never opens them again.

    Args:
        key: The name of the path in errors.
        folder: The run's folder; it may itself be a link.

    Raises:
        ConfigError: At the first link that is a file or folder of the run or leads out of it, and
            at a pipe, socket or device.
    """
    root, waiting = os.path.realpath(folder), [str(folder)]
    while waiting:
        try:
            found = os.scandir(waiting.pop())
        except PermissionError:  # it is another user's, and nothing is written there
            continue
        with found as entries:
            for entry in entries:
                if entry.is_symlink():
                    own = Path(entry.path).parent == folder
                    inside = os.path.realpath(entry.path).startswith(f"{root}{os.sep}")
                    parts = Path(entry.path).relative_to(folder).parts
                    log = "wandb" in parts and entry.name.endswith(".log")
                    if own or not (inside or log):
                        raise ConfigError(
                            f"{key}={folder}: {entry.path} is a link, and files are written "
                            "only in this folder; put the file itself there, or delete the link."
                        )
                elif entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif not entry.is_file(follow_symlinks=False):
                    raise ConfigError(
                        f"{key}={folder}: {entry.path} is neither a file nor a folder; delete it."
                    )


def check_ours(key: str, folder: Path) -> None:
    """Refuse a folder in which another user could redirect writes to other files.

    A new file tells who the user is there, as network file systems may count owners otherwise, and
    whether there are modes: where there are none, as on drives of Windows, every folder seems open.

    Raises:
        ConfigError: If it, or a link to it, is another user's, root's excepted, or if everybody may
            write there.
    """
    with tempfile.TemporaryFile(dir=folder) as made:
        own, found = os.fstat(made.fileno()), folder.stat()
    if {found.st_uid, folder.lstat().st_uid} - {0, own.st_uid}:
        raise ConfigError(
            f"{key}={folder}: it belongs to another user, who could redirect what is written "
            "there to other files; choose a new folder, or chown this one with all that is in it."
        )
    if found.st_mode & stat.S_IWOTH and not own.st_mode & stat.S_IWOTH:
        raise ConfigError(
            f"{key}={folder}: everybody may write there, and could redirect what is written to "
            "other files; choose a new folder, such as one in it."
        )


def check_replaceable(key: str, path: Path) -> None:
    """Refuse to write to what is no regular file, such as a link, a device or a folder.

    Raises:
        ConfigError: If something of that kind is there.
    """
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(path.lstat().st_mode):
            raise ConfigError(
                f"{key}={path}: it is not a file, but a link, a device or a folder, for example; "
                "choose another name."
            )


def close_to_others(folder: Path) -> None:
    """Remove the write permission of everybody but owner and group from a folder of this user's.

    With it another user could put a link there, or in a folder in it, and lead what is written
    elsewhere.
    """
    closed = [each for each in (folder.resolve(), *_folders_in(folder)) if _close(each)]
    if closed:
        _log.warning("%s: everybody could write there; now its owner and group can.", closed[0])


def _folders_in(folder: Path) -> Iterator[Path]:
    for place, names, _ in os.walk(folder):
        yield from (Path(place, name) for name in names)


def _close(folder: Path) -> bool:
    """Close a folder that is this user's and open to all, and return whether it was."""
    status = folder.lstat()
    open_to_all = status.st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH
    if not (stat.S_ISDIR(status.st_mode) and open_to_all and status.st_uid == os.geteuid()):
        return False
    with suppress(OSError):  # some file systems have no modes
        folder.chmod(stat.S_IMODE(status.st_mode) & ~stat.S_IWOTH)
    return not folder.lstat().st_mode & stat.S_IWOTH


def make_private(folder: Path) -> None:
    """Make a folder that only its owner can enter, or close one that others could.

    Raises:
        OSError: If it cannot be made, or is a link.
    """
    refuse_link(folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_mode & 0o077:
        folder.chmod(0o700)


def refuse_link(folder: Path) -> None:
    """Refuse to write in a folder of a run that has become a link while it ran.

    Raises:
        OSError: If it is one.
    """
    if folder.is_symlink():
        raise OSError(errno.ELOOP, "it is a link, and a run writes in its own folder", str(folder))


def open_own(path: Path, flags: int, *, mode: int = 0o666) -> int:
    """Open a file that a run writes to as `os.open` does, but without following links.

    Raises:
        OSError: If it cannot be opened, or is a link.
    """
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode)


def part_links(path: Path, *, private: bool = False) -> None:
    """Replace a hard-linked file, such as `cp -l` makes, by a copy before it is written to.

    What is written in place would change under all of its names, maybe in another run's folder.
    """
    with suppress(FileNotFoundError):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
            with replacing(path, private=private) as temporary:
                shutil.copyfile(path, temporary, follow_symlinks=False)


def make_writable(key: str, path: Path, *, shared: bool = False) -> None:
    """Make a folder and test that it can be written to, before a run starts.

    Raises:
        ConfigError: If it cannot, or others could write to it too and it is not `shared`.
    """
    try:
        path.mkdir(MODE, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
        if not shared:
            check_ours(key, path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            f"{key}={path}: cannot write there ({reason}); choose a folder you may write to."
        ) from error
