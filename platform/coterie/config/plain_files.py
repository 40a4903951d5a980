"""Reads stored YAML and JSON as plain data of limited size, since files may be untrusted."""

import json
import math
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from coterie.config.regular_files import open_regular

YAML_BYTES = 1 << 19
"""Largest size of a stored config, which takes a second or two to read."""
_JSON_BYTES = 1 << 28
"""Largest size of a JSON file, enough for records of a million clients."""
_MOST_VALUES = 1 << 24
"""Values of a JSON file, at most; one of two characters takes up to 64 bytes of memory."""
_DEPTH = 32
_LONG_NUMBER = re.compile(r"[-+]?[0-9][0-9a-fox_:.e+-]{100,}", re.IGNORECASE)
"""Long numbers in YAML, which take time by the square of their length."""


class _Loader(yaml.CSafeLoader):
    """A loader of plain YAML that refuses duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        counts = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        if twice := [key for key, count in counts.items() if count > 1]:
            raise ValueError(f"it has the key {twice[0][:40]!r} twice")
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Any:
    """Read a YAML file of plain values, as `yaml.safe_dump` writes them.

    Raises:
        ValueError: If it is larger than 512 KiB, nested deeper than 32 levels, is not UTF-8 or
            YAML, or has aliases, tags, or keys that are not texts or come twice.
        OSError: If it cannot be read.
    """
    text = read_bytes(path, YAML_BYTES).decode("utf-8")
    try:
        _check_events(text)
        return _plain(yaml.load(text, _Loader))  # noqa: S506 - a safe loader
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError("not plain YAML") from error


def read_json(path: Path, most: int = _JSON_BYTES) -> Any:
    """Read a JSON file.

    Raises:
        ValueError: If it is larger than `most` bytes, has more than 16 million values, is not
            UTF-8 or JSON, or nested too deep.
        OSError: If it cannot be read.
    """
    content = read_bytes(path, most)
    if sum(map(content.count, (b",", b"[", b"{"))) > _MOST_VALUES:
        raise ValueError(f"more than {_MOST_VALUES:,} values")
    try:
        return json.loads(content.decode("utf-8"))
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def plain_copy(value: Any) -> Any:
    """Return plain values of another file as `read_yaml` would, with lists for tuples.

    Raises:
        ValueError: As `read_yaml`; a list in a list, and so on, each twice, takes much text.
    """
    parts, size = [], 0
    try:
        for part in json.JSONEncoder().iterencode(value):
            parts.append(part)
            size += len(part)
            if size > YAML_BYTES:
                raise ValueError(f"larger than {YAML_BYTES >> 10} KiB")
        return _plain(json.loads("".join(parts)))
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    except TypeError as error:
        raise ValueError("it has values that are not plain") from error


def read_bytes(path: Path, most: int = _JSON_BYTES) -> bytes:
    """Return the content of a regular file.

    Raises:
        ValueError: If it is larger than `most` bytes, or no regular file.
        OSError: If it cannot be read.
    """
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise ValueError(f"larger than {most >> 10} KiB")
        return file.read(most)


def _check_events(text: str) -> None:
    """Refuse YAML that would expand, or become other objects, when it is loaded."""
    depth = 0
    for event in yaml.parse(text, yaml.CSafeLoader):
        if getattr(event, "tag", None) is not None or isinstance(event, yaml.AliasEvent):
            raise ValueError("it has tags or aliases")
        if _LONG_NUMBER.fullmatch(getattr(event, "value", None) or ""):
            raise ValueError("it has a number of more than 100 digits")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEPTH:
            raise ValueError(f"it is nested deeper than {_DEPTH} levels")


def _plain(value: Any) -> Any:
    """Return the value if JSON can hold it, and refuse others.

    No dates, bytes, other keys than text, or infinities.
    """
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise ValueError("it has keys that are not texts")
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if not (value is None or isinstance(value, str | bool | int | float)):
        raise ValueError(f"it has a {type(value).__name__}")
    if isinstance(value, int) and value.bit_length() > 64:
        raise ValueError("it has a number of more than 64 bits")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("it has a number that is not finite")
    return value
