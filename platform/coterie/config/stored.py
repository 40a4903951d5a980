"""Configs of earlier runs: names and keys of earlier versions brought up to date, all in here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.config.explain import show
from coterie.config.plain_files import read_yaml
from coterie.errors import ConfigError, reason

_TARGETS = {
    "coterie.engine.pretrained_encoder:Pretrained": "coterie.models.pretrained_encoder:Pretrained",
}
"""Targets that have moved: earlier name to present name."""

_VALUES = {
    "cluster.server": {"auto": "driver"},
    "executor": {"loop": "bare"},
}
"""Values that have been renamed, by their dotted key."""

_REMOVED: dict[str, Any] = {
    "cluster.gpu_memory_fraction": None,
    "data.batch_size": 128,
    "data.limit_seed": 0,
    "data.source.batch_size": 128,
    "data.source.limit_seed": 0,
    "evaluation.knn_temperature": 0.1,
    "faults.retries": 1,
}
"""Keys that have been removed, and the value that every run has now."""


def read_stored_config(path: Path) -> dict[str, Any]:
    """Read the mapping in a stored `config.yaml`.

    Raises:
        ConfigError: If the file is not YAML, not a mapping with a method, or has a value that this
            version does not support.
        OSError: If it cannot be read.
    """
    other = "restore it, or choose another run_dir"
    try:
        values = read_yaml(path)
    except ValueError as error:
        raise ConfigError(f"{path}: it is not plain YAML ({reason(error)}); {other}.") from error
    if not (isinstance(values, dict) and isinstance(values.get("method"), dict)):
        raise ConfigError(f"{path}: it is not the config of a run; {other}.")
    values.pop("trust", None)  # it is the reader's to give, as are downloads
    if isinstance(data := values.get("data"), dict) and "download" in data:
        values["data"] = {**data, "download": False}
    return up_to_date(values, path)


def up_to_date(values: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Replace the names of earlier versions in a run's config, and drop removed keys.

    Args:
        values: The config as plain values.
        path: The file that it was read from, for the error.

    Raises:
        ConfigError: If a removed key has another value than every run has now.
    """
    return _section(values, "", path)


def _section(values: Mapping[str, Any], prefix: str, path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        if key in _REMOVED:
            _check_removed(key, value, path)
        elif isinstance(value, Mapping):
            found[name] = _section(value, f"{key}.", path)
        elif isinstance(value, str):
            renamed = _TARGETS if name == "target" else _VALUES.get(key, {})
            found[name] = renamed.get(value, value)
        else:
            found[name] = value
    return found


def _check_removed(key: str, value: Any, path: Path) -> None:
    if value != _REMOVED[key]:
        raise ConfigError(
            f"{path}: {key}={show(value)} is a key of an earlier version, now always "
            f"{show(_REMOVED[key])}; use the version that wrote the file."
        )
