"""Checks a study's configs before its first run, and finds the differences between them."""

from collections.abc import Mapping, Sequence
from glob import escape
from typing import Any

from coterie.config.component import target_of
from coterie.config.explain import dotted, show
from coterie.config.loading import dump_config
from coterie.config.schema import COMPONENTS, RunConfig
from coterie.errors import ConfigError, DataError, listed
from coterie.run.setup import assemble
from coterie.studies.plan import Variant
from coterie.tracking.paths import local_path

_NOT_COMPARED = ("experiment", "method", "seed", "run_dir", "resume", "tracking", "cluster")
_ABSENT = object()


def check_all(configs: Mapping[Variant, RunConfig], key: str, out: str | None) -> None:
    """Build the data, the clients and the method of each variant, as its run will.

    A variant that has a run in `out` was checked before it began. `key` names `out` in errors.

    Raises:
        ConfigError: If the parts of a variant's config do not fit.
        DataError: If its data is missing or cannot be split as asked.
    """
    runs = None if out is None else local_path(key, out) / "runs"
    for variant, config in configs.items():
        if runs is not None and any(runs.glob(f"{escape(variant.folder)},seed=*")):
            continue
        try:
            assemble(config)
        except (ConfigError, DataError) as error:
            raise type(error)(f"{variant.label}: {error}") from error


def differences(configs: Mapping[Variant, RunConfig]) -> dict[str, str]:
    """Return the keys, besides the method's and those asked for, in which variants differ.

    Where two variants have different classes in a section, such as two encoders, it is the section.

    Returns:
        Key to who has which value: "32 in a, b; null in c".
    """
    flat = [_flat(config) for config in configs.values()]
    labels = [variant.label for variant in configs]
    asked = {
        text.lstrip("+~").partition("=")[0] for variant in configs for text in variant.overrides
    }
    found: dict[str, str] = {}
    for key in dict.fromkeys(key for values in flat for key in values):
        if len({repr(values.get(key, _ABSENT)) for values in flat}) == 1:
            continue
        section = key.partition(".")[0]
        if section not in found and asked.isdisjoint({key, section}):
            own = [values.get(key, _ABSENT) for values in flat]
            found[key] = _who_has_what(labels, own, of_classes=key in COMPONENTS)
    return found


def _who_has_what(labels: Sequence[str], values: Sequence[object], *, of_classes: bool) -> str:
    """Return each value with the variants that have it: "32 in a, b; null in c"."""
    owners: dict[str, list[str]] = {}
    for label, value in zip(labels, values, strict=True):
        text = "none" if value is _ABSENT else show(value)
        if of_classes:
            text = text.rpartition(":")[2].removesuffix(".Config")
        owners.setdefault(text, []).append(label)
    return "; ".join(f"{value} in {listed(own)}" for value, own in owners.items())


def differences_text(configs: Mapping[Variant, RunConfig]) -> str:
    """Return the differences as a sentence; "" without any."""
    found = differences(configs)
    told = [f"{key} ({who})" for key, who in found.items()]
    return f"Differs besides the method: {', '.join(told)}." if told else ""


def _flat(config: RunConfig) -> dict[str, Any]:
    """Return the compared keys.

    A section's class stands before its keys, under the section's name.
    """
    values = {key: v for key, v in dump_config(config).items() if key not in _NOT_COMPARED}
    classes = {name: target_of(getattr(config, name)) for name in COMPONENTS if name in values}
    return {**classes, **dotted(values)}
