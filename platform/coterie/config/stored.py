"""Reads the config that a run has stored."""

from pathlib import Path
from typing import Any

from coterie.config.plain_files import read_yaml
from coterie.errors import ConfigError, damage


def read_stored_config(path: Path) -> dict[str, Any]:
    """Read the mapping in a stored `config.yaml`.

    Raises:
        ConfigError: If the file is not YAML, or not a mapping with a method.
        OSError: If it cannot be read.
    """
    other = "restore it, or choose another run_dir"
    try:
        values = read_yaml(path)
    except ValueError as error:
        raise ConfigError(f"{path}: it is not plain YAML ({damage(error)}); {other}.") from error
    if not (isinstance(values, dict) and isinstance(values.get("method"), dict)):
        raise ConfigError(f"{path}: it is not the config of a run; {other}.")
    values.pop("trust", None)  # it is the reader's to give, as are downloads
    for name in ("data", "encoder"):
        if isinstance(section := values.get(name), dict) and "download" in section:
            values[name] = {**section, "download": False}
    return values
