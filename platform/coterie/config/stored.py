"""Configs that runs have left: read as YAML, with names of earlier versions brought up to date."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from coterie.errors import ConfigError

_TARGETS = {
    "coterie.engine.pretrained_encoder:Pretrained": "coterie.models.pretrained_encoder:Pretrained",
}
"""Targets that have moved: earlier name to present name."""

_VALUES = {"executor": {"loop": "bare"}}
"""Values that have been renamed, by their key."""


def read_stored_config(path: Path) -> dict[str, Any]:
    """Read the mapping in a stored `config.yaml`.

    Raises:
        ConfigError: If the file is not YAML, or not a mapping with a method.
        OSError: If it cannot be read.
    """
    other = "restore it, or choose another run_dir"
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: it is not YAML; {other}.") from error
    if not (isinstance(values, dict) and isinstance(values.get("method"), dict)):
        raise ConfigError(f"{path}: it is not the config of a run; {other}.")
    return up_to_date(values)


def up_to_date(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same config under present names."""
    return {key: _present(key, value) for key, value in values.items()}


def _present(key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return up_to_date(value)
    if key == "target" and isinstance(value, str):
        return _TARGETS.get(value, value)
    renamed = _VALUES.get(key, {})
    return renamed.get(value, value) if isinstance(value, str) else value
