"""Digests of files that a config names, so that a run is not resumed with another file."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from coterie.config.given_path import given_path
from coterie.config.regular_files import sha256
from coterie.errors import ConfigError

_untouched: ContextVar[bool] = ContextVar("_untouched", default=False)


@contextmanager
def files_untouched() -> Iterator[None]:
    """Load configs without reading the files that they name, for example to show a config."""
    token = _untouched.set(True)
    try:
        yield
    finally:
        _untouched.reset(token)


def are_untouched() -> bool:
    """Return whether files that a config names must not be read."""
    return _untouched.get()


def with_digest(given: Any, *, file: str, digest: str, section: str) -> Any:
    """Fill in the digest of a section's file.

    Args:
        given: The section's values; returned unchanged if they are not a mapping or name no file
            that can be read, or files are to be left alone.
        file: Key of the file's path.
        digest: Key of its SHA-256; a given value has to match.
        section: Key of the section, for the error.

    Raises:
        ConfigError: If the given digest does not match.
    """
    if not isinstance(given, Mapping) or not isinstance(given.get(file), str) or are_untouched():
        return given
    path = given_path(f"{section}.{file}", given[file])
    try:
        found = sha256(path)
    except (OSError, ValueError):  # the error is raised where the file is read
        return given
    if given.get(digest) not in (None, found):
        raise ConfigError(
            f"{section}.{digest}={given[digest]}: the file {path} has changed; restore the former "
            "file, or leave the digest out."
        )
    return {**given, digest: found}
