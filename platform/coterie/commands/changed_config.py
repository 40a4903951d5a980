"""The config of a finished run with a few keys changed."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from coterie.commands.arguments import backend_at_hand, read_values
from coterie.config.explain import nearest, show
from coterie.config.loading import ModelT, load_component, load_config
from coterie.config.schema import RunConfig
from coterie.config.trust import check_places, check_targets, packages_in
from coterie.errors import ConfigError
from coterie.tracking.run_directory import RunDirectory

CHANGEABLE = ("accelerator", "cluster", "data", "evaluation", "tracking")
"""Sections that do not decide what was trained."""


def read_changes(model: type[ModelT], arguments: Sequence[str]) -> tuple[ModelT, dict[str, Any]]:
    """Read a command's own keys, and changes of a run's config as nested values.

    Args:
        model: The config model of the command's keys.
        arguments: The command line.

    Raises:
        ConfigError: If a key is unknown or invalid, or decided what was trained.
    """
    changes = read_values(arguments)
    keys = model.model_fields
    own = {key: changes.pop(key) for key in keys if key in changes}
    _check_changes(changes, keys)
    return load_component(model, own), changes


def _check_changes(changes: Mapping[str, Any], others: Collection[str]) -> None:
    """Refuse changes of unknown keys, and of keys that decided what was trained.

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
                f"{key}={show(value)}: training has fixed this key of the run; change only keys "
                f"of {sections}."
            )
        if key != "accelerator" and not isinstance(value, Mapping):
            raise ConfigError(
                f"{key}={show(value)}: the run's {key} cannot be replaced; change only single "
                f"keys of it, as {key}.NAME=VALUE."
            )


def changed_config(
    directory: RunDirectory, changes: Mapping[str, Any], trust: Collection[str] = ()
) -> RunConfig:
    """Load a run's config with changes, on an available cluster unless they name a backend.

    It has no loggers but those of the changes, so that what reads a run sends nothing by itself.

    Args:
        directory: The run.
        changes: Sections and keys of its config, as nested values.
        trust: Packages that it may import, besides Coterie's own and those that the changes name.

    Raises:
        ConfigError: If a changed value is invalid, or the config names a class of another package.
    """
    cluster = changes.get("cluster", {})
    if isinstance(cluster, Mapping):
        cluster = {"backend": backend_at_hand(cluster), **cluster}
    values = _merged(directory.read_config(), {**changes, "cluster": cluster, "trust": trust})
    check_targets(values, directory.config, {*trust, *packages_in(changes)})
    loggers = changes.get("tracking", {}).get("loggers", [])
    values = _merged(values, {"tracking": {"loggers": loggers}})
    check_places(values, directory.config, changes)
    return load_config(values)


def load_stored(directory: RunDirectory, trust: Collection[str]) -> RunConfig:
    """Load a run's config unchanged, to read it; this joins no cluster.

    Raises:
        ConfigError: If it names a class of a package that is not trusted.
    """
    values = directory.read_config()
    check_targets(values, directory.config, trust)
    return load_config({**values, "trust": trust})


def _merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two nested mappings section by section."""
    both = {
        key: _merged(values[key], change)
        for key, change in changes.items()
        if isinstance(change, Mapping) and isinstance(values.get(key), Mapping)
    }
    return {**values, **changes, **both}
