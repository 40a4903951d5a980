"""Digest of a file named in the config, so that a run is not resumed with another file."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.errors import ConfigError


def with_digest(given: Any, *, file: str, digest: str, section: str) -> Any:
    """Fill in the digest of a section's file.

    Args:
        given: The section's values; returned unchanged if they are not a mapping or name no file
            that can be read.
        file: Key of the file's path.
        digest: Key of its SHA-256; a given value has to match.
        section: Key of the section, for the error.

    Raises:
        ConfigError: If the given digest does not match.
    """
    if not isinstance(given, Mapping) or not isinstance(given.get(file), str):
        return given
    path = Path(given[file]).expanduser()
    try:
        with path.open("rb") as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()
    except OSError:  # the error is raised where the file is read
        return given
    if given.get(digest) not in (None, found):
        raise ConfigError(
            f"{section}.{digest}={given[digest]}: the file {path} is another one; put the "
            "former back, or leave the digest out."
        )
    return {**given, digest: found}
