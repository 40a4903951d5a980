"""Paths that users give."""

from pathlib import Path

from coterie.errors import ConfigError


def given_path(key: str, given: str) -> Path:
    """Read a path that may begin with `~` or `~user`.

    Raises:
        ConfigError: If that user, or this one, has no home folder.
    """
    try:
        return Path(given).expanduser()
    except RuntimeError as error:
        start = given.partition("/")[0]
        raise ConfigError(
            f"{key}={given}: no home folder is known for {start}; give the path without it."
        ) from error


def home() -> Path | None:
    """Return the home folder; None for a user without one, such as a numeric id without a name."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def checkpoint_in_parts(folder: Path) -> str | None:
    """Return what to do with a folder that is a sharded Lightning checkpoint; None for others."""
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
