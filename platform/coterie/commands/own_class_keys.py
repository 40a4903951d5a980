"""The short keys of users' classes: `module=my_file:Class module.lr=1e-3 data.target=…`.

A class of the user's takes whatever arguments it takes, which no config model knows. So its keys
become entries of `method.arguments` and `data.arguments`; a class may be written with a dot too, as
LightningCLI does: `module=my_file.Class`. A strategy has a name: `method.strategy=fedprox`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from coterie.config.explain import one_of
from coterie.errors import ConfigError

STRATEGIES = {
    name.lower(): f"coterie.modules.strategies.{name.lower()}:{name}"
    for name in ("FedProx", "Scaffold", "FedNova", "FedDyn")
}
"""Class of each strategy that follows clients' steps, by name."""
OPTIMIZERS = {
    "fedavgm": "momentum",
    "fedadam": "adam",
    "fedyogi": "yogi",
    "fedadagrad": "adagrad",
}
"""`aggregation.optimizer` of each strategy that concerns the server only, by name."""
NEED_NO_LABELS = ("iid", "by_client", "file", "rest")
"""Partitions of rows whatever their classes are."""
_COMMON = ("module", "arguments", "is_object")
_DATA = {
    "data=lightning": (*_COMMON, "loader_batch_size", "read_labels"),
    "data=torch": (*_COMMON, "split", "size", "limit", "limit_test"),
}
"""The choices of data that a user's class reads, each with its own keys."""
_DATA_OF = {
    "coterie.datamodules.lightning_data:LightningData": "data=lightning",
    "coterie.datamodules.torch_data:TorchData": "data=torch",
}


def with_own_classes(
    overrides: Sequence[str], stored: Mapping[str, Any] | None = None
) -> list[str]:
    """Return the overrides with short keys written out in full.

    Args:
        overrides: As on the command line.
        stored: The config of the run to resume, which says of what kind its data is.
    """
    data = [text for text in overrides if text.startswith("data=")]
    if stored is not None:
        found = _DATA_OF.get(_target(stored, "data"), "")
        own = found or _target(stored, "method").endswith(":Lightning")
        return [*_written_out(overrides, found)] if own else list(overrides)
    if "experiment=lightning" in overrides and not data:
        overrides = [*overrides, "data=lightning"]
    elif "experiment=lightning" not in overrides and not _DATA.keys() & set(data):
        return list(overrides)
    return [*_written_out(overrides)]


def strategy_keys(name: str) -> dict[str, str]:
    """Return the config keys that a strategy's name sets.

    Raises:
        ConfigError: If no strategy is called so.
    """
    asked, name = name, name.lower()
    if name in ("fedbn", "fedper"):
        raise ConfigError(
            f"strategy={asked}: it keeps layers with their clients, so it is not a strategy; give "
            "personal=[NAMES] of the method."
        )
    if name in STRATEGIES:
        return {"method.strategy.target": STRATEGIES[name]}
    if name in OPTIMIZERS:
        return {"aggregation.optimizer": OPTIMIZERS[name]}
    if name == "fedavg":
        return {}
    raise ConfigError(f"strategy={asked}: {one_of(name, ('fedavg', *STRATEGIES, *OPTIMIZERS))}")


def _target(stored: Mapping[str, Any], section: str) -> str:
    inner = stored.get(section)
    return str(inner.get("target")) if isinstance(inner, Mapping) else ""


def _written_out(overrides: Sequence[str], data: str = "") -> Iterator[str]:
    own = next((keys for choice, keys in _DATA.items() if choice in {*overrides, data}), None)
    splits = [text.partition("=")[2] for text in overrides if text.startswith("partition=")]
    given = any(text.startswith("data.read_labels=") for text in overrides)
    if "data=lightning" in overrides and not given and splits and splits[-1] not in NEED_NO_LABELS:
        yield "data.read_labels=true"
    for override in overrides:
        key, equals, value = override.partition("=")
        if key == "module":
            yield f"method.module={_path(value)}"
        elif key.startswith("module."):
            yield f"method.arguments.{_argument(key, 'module.')}{equals}{value}"
        elif own is not None and key == "data.target":
            yield f"data.module={_path(value)}"
        elif own is not None and key.startswith("data.") and key.split(".")[1] not in own:
            yield f"data.arguments.{_argument(key, 'data.')}{equals}{value}"
        elif key == "method.strategy" and value.isidentifier() and value != "null":
            yield from (f"{one}={of}" for one, of in strategy_keys(value).items())
        else:
            yield override


def _argument(key: str, section: str) -> str:
    """Return the name of a class's argument in a key, without LightningCLI's `init_args`."""
    return key.removeprefix(section).removeprefix("init_args.")


def _path(value: str) -> str:
    """Return a class path in the form package.module:Class."""
    if ":" in value or "." not in value:
        return value
    module, _, name = value.rpartition(".")
    return f"{module}:{name}"
