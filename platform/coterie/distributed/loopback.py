"""A Ray for this machine and this user alone: on the loopback, behind a token of his own."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ray

_ENABLED = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""With 0, Ray keeps to the loopback; the name is that of the systems where this is the default."""


@contextmanager
def private() -> Iterator[None]:
    """Let a Ray that is started or joined meanwhile keep to the loopback, as it does on macOS.

    Ray asks for a token by default, from a file that it would write for everybody to read.
    """
    before = os.environ.get(_ENABLED)
    os.environ[_ENABLED] = "0"  # for Ray's own processes
    ray._private.ray_constants.ENABLE_RAY_CLUSTER = False
    if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        _hide_token(Path.home() / ".ray" / "auth_token")
    try:
        yield
    finally:
        ray._private.ray_constants.ENABLE_RAY_CLUSTER = True
        os.environ.pop(_ENABLED)
        if before is not None:
            os.environ[_ENABLED] = before


def _hide_token(path: Path) -> None:
    """Make Ray's token if there is none, and let its owner alone read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
    except FileExistsError:
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)
