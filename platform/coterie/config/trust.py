"""What a stored config may import: it may be untrusted, and importing runs code."""

import os
import site
from collections.abc import Collection, Iterator, Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from coterie.config.explain import dotted, show
from coterie.errors import ConfigError

GROUP = "coterie.trusted"
"""The group of entry points by which an installed package declares itself trusted."""
_OWN = "coterie"
_LOGGERS = "tracking.loggers["
"""Keys of loggers that are chosen by class, with any arguments."""
_MODULE = "module"
"""The key of a user's own module or data, which may name anything that can be called."""
_SITES = "data.clients"
"""The key of sites, whose own names may be any text; what it names are paths."""
_ACCOUNT = "tracking.wandb.entity"
_PLACES: Mapping[str, tuple[str, tuple[str, ...], str]] = {
    "cluster.address": ("joins no cluster", ("auto", "local"), "RAY_ADDRESS"),
    _ACCOUNT: ("sends nothing to an account", (), "WANDB_ENTITY"),
}
"""Keys of places elsewhere, each with the error's words, harmless values, and the user's own
variable."""


def as_packages(given: Any) -> Any:
    """Return a single name as a tuple of one; other values stay as they are."""
    return (given,) if isinstance(given, str) else given


def trusted_by(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the packages under `trust` in plain values that are not validated yet."""
    given = as_packages(values.get("trust"))
    return tuple(map(str, given)) if isinstance(given, list | tuple) else ()


Trust = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...],
    BeforeValidator(as_packages),
    Field(strict=False),
]
"""One package, or a list of them."""


def check_targets(stored: Any, path: Path, trust: Collection[str]) -> None:
    """Refuse a stored config that names a class of a package that is not trusted.

    Nothing is imported for the check.

    Args:
        stored: The config, or a part of it, as plain values.
        path: The file that it was read from, for the error.
        trust: Packages that the user trusts, besides Coterie's own and those of the entry points.

    Raises:
        ConfigError: At the first class of another package.
    """
    strangers: dict[str, str] = {}
    for key, target in targets_in(stored):
        module = target.partition(":")[0]
        package = module.partition(".")[0]
        if package == _OWN and not _with_arguments(key):
            continue
        if any(f"{module}.".startswith(f"{known}.") for known in {*trust, *_declared()}):
            continue
        if package == _OWN and key.startswith(_LOGGERS):
            raise ConfigError(
                f"{path}: {key}={show(target)}: a stored config may name Coterie's loggers, but "
                "not their classes, whose arguments may lead elsewhere; give tracking.loggers "
                "again."
            )
        strangers.setdefault(package, f"{key}={show(target)}")
    if strangers:
        first, shown = next(iter(strangers.values())), show([*strangers])
        packages = shown if len(strangers) > 1 else shown[1:-1]
        raise ConfigError(
            f"{path}: {first}: a stored config imports only Coterie's own classes; if you trust "
            f"the code of {', '.join(map(show, strangers))}, add trust={packages}."
        )


def packages_in(given: Any) -> set[str]:
    """Return the packages that values name by nested or dotted keys.

    Coterie's own only for what takes any arguments.
    """
    named = {key: target.partition(":")[0].partition(".")[0] for key, target in targets_in(given)}
    return {each for key, each in named.items() if each != _OWN or _with_arguments(key)}


def _with_arguments(key: str) -> bool:
    """Return whether a config may call the class under this key with any arguments."""
    return key.startswith(_LOGGERS) or _is_module(key)


def _is_module(key: str) -> bool:
    *parents, name = key.split(".")
    return name == _MODULE and "arguments" not in parents


def check_places(stored: Mapping[str, Any], path: Path, given: Mapping[str, Any]) -> None:
    """Refuse a stored config that names a cluster or a W&B account.

    Whoever runs a cluster can run code in its drivers, and an account gets what a run computes.

    Args:
        stored: The config, with the keys that were given.
        path: The file that it was read from, for the error.
        given: What the user gave, by nested or dotted keys.

    Raises:
        ConfigError: If the config alone names one, which is not that of the environment.
    """
    loggers = _at(stored, "tracking.loggers")
    sends = isinstance(loggers, list | tuple) and "wandb" in loggers
    for key, (verb, usual, variable) in _PLACES.items():
        value = _at(stored, key)
        if not isinstance(value, str) or value in {*usual, os.environ.get(variable)}:
            continue
        if key not in dotted(given) and (sends or key != _ACCOUNT):
            raise ConfigError(
                f"{path}: {key}={show(value)}: a stored config {verb} by itself; if it is yours, "
                f"give {key} again."
            )


def _at(values: Any, key: str) -> Any:
    """Return the value at a dotted key of nested values; None if it is missing."""
    for part in key.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def targets_in(values: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Return the key and the value of each name of a class in plain values, however deep."""
    if isinstance(values, Mapping):
        # The class of an object of a program is a note, and never imported.
        imported = values.get("is_object") is not True
        for name, value in values.items():
            inner = f"{key}.{name}" if key else str(name)
            named = inner.rpartition(".")[2] == "target" or (imported and _is_module(inner))
            named = named and key != _SITES
            if named and isinstance(value, str):
                yield inner, value
            else:
                yield from targets_in(value, inner)
    elif isinstance(values, list | tuple):
        for number, value in enumerate(values):
            yield from targets_in(value, f"{key}[{number}]")


def _declared() -> set[str]:
    """Return packages that installed distributions name in their entry points.

    What lies in the current folder is not.
    """
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    return {
        entry.value.partition(":")[0]
        for distribution in distributions(path=folders)
        for entry in distribution.entry_points
        if entry.group == GROUP
    }
