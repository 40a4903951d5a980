"""Writes values as overrides that Hydra reads back as the same values."""

from collections.abc import Mapping
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException


def written(value: Any) -> str:
    """Return a value as on the command line, at full length.

    A text in quotes where it needs them.
    """
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple):
        return f"[{','.join(map(written, value))}]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{written(key)}:{written(of)}" for key, of in value.items()) + "}"
    if not isinstance(value, str) or _is_plain(value):
        return str(value)
    quoted: str = QuotedString(text=value, quote=Quote.double).with_quotes()
    return quoted


def _is_plain(text: str) -> bool:
    """Return whether Hydra reads the unquoted text as the same text."""
    try:
        override = OverridesParser.create().parse_override(f"key={text}")
    except HydraException:
        return False
    return not override.is_sweep_override() and override.value() == text
