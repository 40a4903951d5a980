"""Reads `key=value` arguments of commands other than training."""

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from coterie.commands.compose import as_plain, groups
from coterie.commands.overrides import parse
from coterie.config.explain import nearest, show
from coterie.config.schema import RunConfig
from coterie.errors import ConfigError


def separate(arguments: Sequence[str], keys: Collection[str]) -> tuple[list[str], list[str]]:
    """Split arguments into those of a command's own keys and all others, each in order.

    Raises:
        ConfigError: If one is no key of a run either, and close to one of the command's.
    """
    own = [text for text in arguments if "=" in text and text.partition("=")[0] in keys]
    others = [text for text in arguments if text not in own]
    known = {*RunConfig.model_fields, *groups()}
    for text in others:
        head = text.partition("=")[0]
        if head.isidentifier() and head not in known and (near := nearest(head, keys)):
            raise ConfigError(f"{text}: there is no such key; did you mean {near}?")
    return own, others


def read_values(arguments: Sequence[str]) -> dict[str, Any]:
    """Read `a.b=1` as `{"a": {"b": 1}}`, by the grammar of all commands."""
    values: dict[str, Any] = {}
    for override in parse(arguments):
        if override.is_delete():
            raise ConfigError(f"{override.input_line}: nothing is set yet; leave it out.")
        *parents, leaf = override.key_or_group.split(".")
        section = values
        for parent in parents:
            before = section = section.setdefault(parent, {})
            if not isinstance(section, dict):
                raise ConfigError(
                    f"{override.input_line}: {parent}={show(before)} has no keys of its own; leave "
                    "one of the two out."
                )
        section[leaf] = override.value()
    return as_plain(values, arguments)


def backend_at_hand(cluster: Mapping[str, Any]) -> Literal["ray", "serial"]:
    """Choose Ray or this process as the backend, where the `cluster` section names none.

    It is Ray if the section has an address or a number of actors, or RAY_ADDRESS is set; else this
    process.
    """
    wanted = cluster.get("address") or cluster.get("num_actors") or os.environ.get("RAY_ADDRESS")
    return "ray" if wanted else "serial"
