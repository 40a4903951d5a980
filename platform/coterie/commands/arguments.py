"""The `key=value` arguments of commands that compose no experiment."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from coterie.commands.compose import parse
from coterie.errors import ConfigError


def read_values(arguments: Sequence[str]) -> dict[str, Any]:
    """`a.b=1` as `{"a": {"b": 1}}`, by the same grammar as everywhere.

    Raises:
        ConfigError: At the first argument that is no `key=value`, or stands against another one.
    """
    values: dict[str, Any] = {}
    for override in parse(arguments):
        if override.is_delete():
            raise ConfigError(f"{override.input_line}: nothing is set yet; leave it out.")
        *parents, leaf = override.key_or_group.split(".")
        section = values
        for parent in parents:
            section = section.setdefault(parent, {})
            if not isinstance(section, dict):
                raise ConfigError(
                    f"{override.input_line}: {parent} has a value of its own already."
                )
        section[leaf] = override.value()
    return values


def backend_at_hand(cluster: Mapping[str, Any]) -> Literal["ray", "serial"]:
    """The backend for the keys of a `cluster` section that names none.

    Ray where they hold an address or a number of actors, or RAY_ADDRESS names a cluster; else this
    process.
    """
    wanted = cluster.get("address") or cluster.get("num_actors") or os.environ.get("RAY_ADDRESS")
    return "ray" if wanted else "serial"
