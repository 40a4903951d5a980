"""The token that a local Ray asks for, in a file that only its user can read."""

import os
import secrets
from pathlib import Path

from coterie.config.given_path import home

_GIVEN = frozenset({"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"})


def keep_token() -> None:
    """Make a token if there is none, in a file that only its owner can read.

    Without a home folder that can be written to, the token is in this process's environment alone.
    """
    if _GIVEN & os.environ.keys():
        return
    folder = home()
    try:
        if folder is None:
            raise FileNotFoundError
        _hide(folder / ".ray" / "auth_token")
    except OSError:
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def _hide(path: Path) -> None:
    """Write the token's file, or remove other users' access to an existing one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
    except FileExistsError:
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)
