"""Paths that users give, and folders that runs can write to."""

import os
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

from coterie.errors import ConfigError

ROOT_VARIABLE = "COTERIE_RUNS"
"""Environment variable with the default root of run directories."""


def local_path(key: str, given: str) -> Path:
    """Read a path or a file:// URI."""
    if "://" not in given:
        return Path(given).expanduser()
    parts = urlsplit(given)
    if parts.scheme != "file" or parts.netloc not in {"", "localhost"}:
        raise ConfigError(f"{key}={given}: give a path or a file:///… URI; mount remote storage.")
    return Path(unquote(parts.path))


def default_root(*, job: bool) -> Path:
    """`$COTERIE_RUNS` or `runs`; a submitted job needs the first, as an absolute path."""
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


def make_writable(key: str, path: Path) -> None:
    """Make a folder and test that it can be written to, before a run starts."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            f"{key}={path}: cannot write there ({reason}); choose a folder you may write to."
        ) from error
