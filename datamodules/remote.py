"""Data at a URL, such as s3://bucket/folder, through fsspec."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from coterie.config.given_path import given_path
from coterie.config.regular_files import open_regular
from coterie.errors import DataError
from coterie.tracking.atomic import replacing

_MOST_BYTES = 1 << 31
CACHE_VARIABLE = "COTERIE_CACHE"
STORES = ("s3", "gs", "gcs", "az", "abfs")
"""URL schemes of object stores, whose address and keys come from the environment. Other schemes of
fsspec lead to any server, to files of this machine, or through one another."""


def is_remote(path: str) -> bool:
    """Return whether a path is a URL other than file://."""
    return "://" in path and not path.startswith("file://")


def remote_path(url: str) -> Any:
    """Return a path at a URL, with the methods of `pathlib.Path`.

    Raises:
        DataError: If it is not a URL of an object store, or the store's package is not installed.
    """
    if url.partition("://")[0] not in STORES or "::" in url:
        raise DataError(
            f"{url}: only URLs of object stores are opened ({', '.join(STORES)}); fetch the data, "
            "and give its folder."
        )
    try:
        from upath import UPath

        path: Any = UPath(url)
        _ = path.fs
    except (ImportError, ValueError) as error:
        raise DataError(
            f"{url}: it cannot be opened ({str(error).splitlines()[0]}); pip install "
            "'coterie[remote]'."
        ) from error
    return path


def opened(path: Any) -> Any:
    """Open a file to read its bytes; a local one must be a regular file.

    Raises:
        OSError: If it cannot be opened, or is a pipe, a device, or of /proc.
    """
    return open_regular(path) if isinstance(path, Path) else path.open("rb")


def read_whole(path: Any) -> bytes:
    """Return a file's bytes.

    Raises:
        OSError: As `opened`.
        ValueError: If they are more than 2 GiB: the file may have holes, and take no room on disk.
    """
    with opened(path) as file:
        if file.seek(0, os.SEEK_END) > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES >> 30} GiB")
        file.seek(0)
        content: bytes = file.read()
    return content


@contextmanager
def writing(path: Any) -> Iterator[Path]:
    """Give a temporary local path to write to, which then becomes `path` whole or not at all."""
    if isinstance(path, Path):
        with replacing(path) as temporary:
            yield temporary
        return
    with TemporaryDirectory() as folder:
        temporary = Path(folder) / path.name
        yield temporary
        path.fs.put(str(temporary), path.path)


def cached(path: Any, version: str) -> Path:
    """Return a local copy of a remote file, fetched when it is first asked for.

    Copies lie in COTERIE_CACHE, by default ~/.cache/coterie, and are kept; processes may ask for
    the same file at once.

    Args:
        path: A file as from `remote_path`.
        version: What the file belongs to; a copy of another version is not used.

    Raises:
        OSError: If it cannot be fetched.
    """
    root = given_path(CACHE_VARIABLE, os.environ.get(CACHE_VARIABLE) or "~/.cache/coterie")
    key = sha256(f"{path} {version}".encode()).hexdigest()[:24]
    copy = root / key / str(path.name)
    if not copy.is_file():
        copy.parent.mkdir(parents=True, exist_ok=True)
        with replacing(copy) as temporary:
            path.fs.get(path.path, str(temporary))
    return copy
