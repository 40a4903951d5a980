"""The config of a finished run with a few keys changed."""

from collections.abc import Collection, Mapping
from typing import Any

from coterie.commands.arguments import backend_at_hand
from coterie.config.explain import nearest, show
from coterie.config.loading import load_config
from coterie.config.schema import RunConfig
from coterie.errors import ConfigError
from coterie.tracking.run_directory import RunDirectory

CHANGEABLE = ("accelerator", "cluster", "data", "evaluation", "tracking")
"""Sections that do not decide what was trained."""


def check_changes(changes: Mapping[str, Any], others: Collection[str]) -> None:
    """Refuse changes of keys that do not exist, or that decided what was trained.

    Args:
        changes: Sections and keys of a run's config, as nested values.
        others: The command's own keys, for the error message.

    Raises:
        ConfigError: At the first key that cannot be changed.
    """
    sections = ", ".join(CHANGEABLE)
    for key, value in changes.items():
        if key not in RunConfig.model_fields:
            close = nearest(key, [*others, *CHANGEABLE])
            hint = f"did you mean {close}?" if close else f"the keys are {', '.join(others)}."
            raise ConfigError(f"{key}={show(value)}: there is no such key; {hint}")
        if key not in CHANGEABLE:
            raise ConfigError(
                f"{key}={show(value)}: the run was trained with its own value; change only keys of "
                f"{sections}."
            )
        if key != "accelerator" and not isinstance(value, Mapping):
            raise ConfigError(
                f"{key}={show(value)}: the run was trained with its own {key}; change only single "
                f"keys of it, as {key}.NAME=VALUE."
            )


def changed_config(directory: RunDirectory, changes: Mapping[str, Any]) -> RunConfig:
    """Load a run's config with changes, on the cluster at hand unless they name a backend.

    Raises:
        ConfigError: If a changed value is invalid.
    """
    cluster = changes.get("cluster", {})
    if isinstance(cluster, Mapping):
        cluster = {"backend": backend_at_hand(cluster), **cluster}
    return load_config(_merged(directory.read_config(), {**changes, "cluster": cluster}))


def _merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Replace plain values section by section."""
    both = {
        key: _merged(values[key], change)
        for key, change in changes.items()
        if isinstance(change, Mapping) and isinstance(values.get(key), Mapping)
    }
    return {**values, **changes, **both}
