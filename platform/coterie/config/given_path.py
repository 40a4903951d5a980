"""Paths that users give."""

import errno
from pathlib import Path

from coterie.errors import ConfigError

_SHOWN = 40
"""Characters that are shown of a path that is too long."""


def given_path(key: str, given: str) -> Path:
    """Read a path that may begin with `~` or `~user`.

    Raises:
        ConfigError: If that user, or this one, has no home folder, or no file can have such a name.
    """
    try:
        path = Path(given).expanduser()
    except RuntimeError as error:
        start = given.partition("/")[0]
        raise ConfigError(
            f"{key}={given}: no home folder is known for {start}; give the path without it."
        ) from error
    try:
        path.exists()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise ConfigError(
                f"{key}={given[:_SHOWN]}…: the name is too long for a file; give another."
            ) from error
    return path


def home() -> Path | None:
    """Return the home folder; None for a user without one, such as a numeric id without a name."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def checkpoint_in_parts(folder: Path) -> str | None:
    """Return advice for a folder that is a sharded Lightning checkpoint; None for other folders."""
    if (folder / ".metadata").is_file():
        kind, command = (
            "FSDP",
            "python -m lightning.pytorch.utilities.consolidate_checkpoint FOLDER",
        )
    elif any(folder.glob("*/mp_rank_*")) or any(folder.glob("mp_rank_*")):
        kind, command = "DeepSpeed", "python FOLDER/zero_to_fp32.py FOLDER FILE"
    else:
        return None
    return f"it is a checkpoint of {kind} in parts, and not a file; join them by {command}"
