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
    """Return the home folder; None for a user who has none, as under a number without a name."""
    try:
        return Path.home()
    except RuntimeError:
        return None
