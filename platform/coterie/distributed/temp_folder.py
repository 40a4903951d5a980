"""The folder for the sockets of a local Ray and of the fork server of its workers."""

import os
from pathlib import Path

from coterie.errors import ConfigError

_GIVEN = ("RAY_TMPDIR", "TMPDIR")
_USUAL = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - what is made there is for its owner alone
_LONGEST_SOCKET = 107
_INSIDE = len(
    "/coterie-01234567/ray/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store.1"
)
_LONGEST = _LONGEST_SOCKET - _INSIDE
"""Longest path of the folder, in characters, for which Ray's socket addresses are short enough."""


def temp_folder() -> Path:
    """Choose a writable folder with a path short enough for sockets: TMPDIR if that fits.

    Raises:
        ConfigError: If there is none.
    """
    given = [os.environ[name] for name in _GIVEN if os.environ.get(name)]
    for folder in (*given, *_USUAL):
        whole = Path(folder).absolute()
        short = len(os.fsencode(whole)) <= _LONGEST
        if short and whole.is_dir() and os.access(whole, os.W_OK | os.X_OK):
            return whole
    raise ConfigError(
        f"RAY_TMPDIR: Ray's sockets need a writable folder whose path has at most {_LONGEST} "
        f"characters, and none of {', '.join((*given, *_USUAL))} is one; set RAY_TMPDIR to such a "
        "folder."
    )
