"""Parses `key=value` arguments by Hydra's grammar."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import AliasEvent, YAMLError

from coterie.errors import ConfigError

_PATHS = frozenset({"run_dir", "run", "model", "out", "input", "output"})
_PATH_ENDS = (".path", ".root", ".weights")
"""Keys, and ends of keys, whose values are paths: read as they are, unless they are in quotes."""
_ITEMS = re.compile(r"""(?:"[^"]*"|'[^']*'|[^,"'])+""")
_PLAIN_LIST = re.compile(r"\[([^\[\]{}$]+)\]")
"""A list without lists in it, and what stands between its commas."""
_LONGEST = 200
"""Characters of a refused override that are shown."""
_STRUCTURE = tuple("'\"[{(")
"""First characters of values that are more than a text, for which Hydra's error message is
shown."""


def parse(overrides: Sequence[str], *, sweeps: bool = False) -> list[Override]:
    """Parse overrides by Hydra's grammar.

    Args:
        overrides: Such as `method.lr=1e-3`.
        sweeps: Whether an override may have several values, as `method.lr=1e-3,1e-2`.

    Raises:
        ConfigError: At the first override that cannot be parsed, or must not have several values.
    """
    parser = OverridesParser.create()
    parsed = []
    for text in overrides:
        try:
            override = _read(parser, text, sweeps=sweeps)
        except (HydraException, RecursionError, ValueError) as error:
            shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
            raise ConfigError(f"{shown}: it cannot be read; {_hint(text)}.") from error
        if override.package is not None:
            raise ConfigError(
                f"{text}: a section cannot be renamed; leave @{override.package} out."
            )
        if override.is_sweep_override() and not sweeps:
            value = override.get_value_string()
            hint = f"give one, or a list as {override.key_or_group}=[{value}]"
            raise ConfigError(f"{text}: these are several values; {hint}.")
        parsed.append(override)
    return parsed


def _hint(text: str) -> str:
    """Return advice on an override that cannot be read."""
    if text.startswith("-"):
        return "keys have no dashes before them"
    if "=" not in text:
        example = f", such as run={text} or data.path={text}" if Path(text).exists() else ""
        return f"write it as key=value{example}"
    return "close brackets and quotes, and put other text in quotes such as key='\"a, b\"'"


def _read(parser: OverridesParser, text: str, *, sweeps: bool) -> Override:
    """Read an override; values that Hydra would need in quotes (bücher, a=b, it's) become texts.

    So do those in a list, as in [Höhe,weight (kg)], and names in a mapping, as in YAML.
    """
    key, _, value = text.partition("=")
    as_text = f"{key}={QuotedString(value, Quote.double).with_quotes()}"
    is_path = key.lstrip("+") in _PATHS or key.endswith(_PATH_ENDS)
    in_quotes = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    if is_path and value != "null" and not in_quotes and not (sweeps and "," in value):
        return parser.parse_override(as_text if value else text)
    try:
        return parser.parse_override(text)
    except HydraException:
        if plain := _PLAIN_LIST.fullmatch(value):
            quoted = ",".join(_quoted(parser, one) for one in _ITEMS.findall(plain[1]))
            return parser.parse_override(f"{key}=[{quoted}]")
        if not is_path and (found := _mapping(value)):
            return replace(parser.parse_override(f"{key}=null"), _value=found)
        if not value or "${" in value or (not is_path and value.startswith(_STRUCTURE)):
            raise
        return parser.parse_override(as_text)


def _mapping(value: str) -> dict[Any, Any]:
    """Parse a YAML mapping such as {Höhe: 3}; return {} for any other text."""
    if not value.startswith("{") or "${" in value:
        return {}
    try:
        if any(isinstance(event, AliasEvent) for event in yaml.parse(value)):
            return {}  # few letters may stand for any number of values
        found = OmegaConf.to_container(OmegaConf.create(value))
    except (OmegaConfBaseException, YAMLError, ValueError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def _quoted(parser: OverridesParser, item: str) -> str:
    """Return an item of a list, in quotes if Hydra needs them."""
    item = item.strip()
    try:
        parser.parse_override(f"x={item}")
    except HydraException:
        return QuotedString(item, Quote.double).with_quotes()
    return item
