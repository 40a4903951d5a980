"""What a stored config may import: it may come from a stranger, and importing runs code."""

import os
import site
from collections.abc import Collection, Iterator, Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from coterie.config.explain import show
from coterie.errors import ConfigError
from coterie.shipped import BESIDE, is_foreign

SHIPPED = ("coterie", *BESIDE)
"""The packages that any stored config may name."""
GROUP = "coterie.trusted"
"""The group of entry points by which an installed package declares itself trusted."""


def as_packages(given: Any) -> Any:
    """A single name as a list of one."""
    return (given,) if isinstance(given, str) else given


def trusted_by(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The packages under `trust` in plain values that are not validated yet."""
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
    for key, target in targets_in(stored):
        module = target.partition(":")[0]
        package = module.partition(".")[0]
        if package in SHIPPED and not is_foreign(package):
            continue
        if package in SHIPPED:
            raise ConfigError(
                f"{path}: {key}={show(target)}: another package called {package} is imported; "
                "start from another folder."
            )
        if not any(f"{module}.".startswith(f"{known}.") for known in {*trust, *_declared()}):
            raise ConfigError(
                f"{path}: {key}={show(target)}: a stored config imports only Coterie's own "
                f"classes; if you trust the code of {show(package)}, add trust={show(package)}."
            )


def packages_in(given: Any) -> set[str]:
    """The packages of all classes that values name, by nested or dotted keys."""
    return {target.partition(":")[0].partition(".")[0] for _, target in targets_in(given)}


def check_address(stored: Mapping[str, Any], path: Path) -> None:
    """Refuse a stored config that names a cluster: whoever runs a cluster can run code in a driver.

    Raises:
        ConfigError: If `cluster.address` is that of a certain cluster, and not RAY_ADDRESS.
    """
    cluster = stored.get("cluster")
    address = cluster.get("address") if isinstance(cluster, Mapping) else None
    here = {"auto", "local", os.environ.get("RAY_ADDRESS")}
    if isinstance(address, str) and address not in here:
        raise ConfigError(
            f"{path}: cluster.address={show(address)}: a stored config joins no cluster by itself; "
            "if it is yours, give cluster.address again."
        )


def targets_in(values: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """The key and the value of each `target` in plain values, however deep."""
    if isinstance(values, Mapping):
        for name, value in values.items():
            inner = f"{key}.{name}" if key else str(name)
            if inner.rpartition(".")[2] == "target" and isinstance(value, str):
                yield inner, value
            else:
                yield from targets_in(value, inner)
    elif isinstance(values, list | tuple):
        for number, value in enumerate(values):
            yield from targets_in(value, f"{key}[{number}]")


def _declared() -> set[str]:
    """Packages that an installed distribution declares; what lies in the current folder is not."""
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    return {
        entry.value.partition(":")[0]
        for distribution in distributions(path=folders)
        for entry in distribution.entry_points
        if entry.group == GROUP
    }
