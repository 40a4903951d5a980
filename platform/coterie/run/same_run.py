"""Checks that a config may resume a stored run: every key that changes its bits must agree."""

import re
from collections.abc import Mapping
from typing import Any

from coterie.config.explain import show
from coterie.config.loading import dump_config
from coterie.config.schema import RunConfig
from coterie.errors import ConfigError

_FREE = frozenset(
    {
        "experiment",
        "run_dir",
        "resume",
        "accept_changed_data",
        "callbacks",
        "executor",
        "accelerator",
        "cluster",
        "faults",
        "evaluation",
        "checkpoint",
        "tracking",
        "data.root",
        "data.path",
        "data.download",
        "encoder.download",
        "method.weights",  # with which a checkpoint's run has begun
    }
)
"""Keys and sections that a resumed run may change: they decide where, how and how long it runs."""
_BOUND = frozenset({"cluster.threads_per_client"})
"""Keys of those sections that it may not change: the number of threads changes rounding."""
_VMAP = "vmap"
"""The executor whose bits depend on the clients that a process trains as one."""
_OTHERS = "bare"
"""Stands for all executors with equal bits."""
_NOISE = "privacy.dp"
_BUDGET = f"{_NOISE}.budget"
_ORDERED = "data.clients"
"""Mappings whose order counts, because it numbers the clients."""
_MISSING = object()
_UNSCORED = frozenset({"every", "batch_size", "figures"})
"""Keys of `evaluation` on which no final score depends."""


def check_same_run(stored: Mapping[str, Any], config: RunConfig) -> str:
    """Check that a config gives the same run as a stored one, which it may extend.

    Args:
        stored: The stored run's config as plain values.
        config: The config to resume with. The keys that its method calls extensible may be larger,
            and so may the budget.

    Returns:
        What extends the run, as a sentence; "" if nothing does.

    Raises:
        ConfigError: Naming the first key that differs.
    """
    now, then = _flat(dump_config(config)), _flat(stored)
    extensions = []
    for key in sorted(then.keys() | now.keys(), key=_importance):
        if then.get(key, _MISSING) != now.get(key, _MISSING):
            if _raised(key, then, now, config):
                extensions.append(f"{key} rises from {then[key]} to {now[key]}")
                continue
            told = _as_given(key)
            was, is_ = (f"{told}={d[key]}" if key in d else f"no {told}" for d in (then, now))
            raise ConfigError(
                f"resume=true: the checkpoint's run had {was}, this one has {is_}; give the same "
                "config, or another run_dir."
            )
    return f"{', '.join(extensions)}." if extensions else ""


def measured_otherwise(stored: Mapping[str, Any], config: RunConfig) -> str:
    """Return a sentence on changed callbacks, and on keys that change a stored run's final scores.

    Returns:
        A sentence; "" if nothing differs.
    """
    now, then = dump_config(config), stored
    keys = {"callbacks": (then.get("callbacks", []), now["callbacks"])}
    for key, value in now["evaluation"].items():
        if key not in _UNSCORED:
            keys[f"evaluation.{key}"] = then["evaluation"][key], value
    changed = [
        f"{key} changes from {show(was)} to {show(is_)}"
        for key, (was, is_) in keys.items()
        if _plain(was) != _plain(is_)
    ]
    return f"{', '.join(changed)}." if changed else ""


def other_callbacks(stored: Mapping[str, Any], config: RunConfig) -> bool:
    """Return whether the config names other callbacks than a stored run's."""
    return bool(_plain(stored.get("callbacks", [])) != _plain(dump_config(config)["callbacks"]))


def _as_given(key: str) -> str:
    """Return a key as a user gives it: arguments of a class of theirs have short ones."""
    for section, short in (("method", "module"), ("data", "data")):
        key = re.sub(rf"^{section}\.arguments\.", f"{short}.", key)
    return key


def _importance(key: str) -> tuple[bool, bool, int, str]:
    """Return a key to sort by: first the outer classes, which explain other differences."""
    names_class = key.endswith((".target", ".module"))
    return not names_class, key != "executor", key.count(".") if names_class else 0, key


def _raised(key: str, then: Mapping[str, Any], now: Mapping[str, Any], config: RunConfig) -> bool:
    """Return whether a key is larger now and may be, such as a number of rounds or the budget."""
    section, _, name = key.partition(".")
    before, after = then.get(key), now.get(key)
    if key != _BUDGET and not (section == "method" and name in config.method.extensible):
        return False
    return isinstance(before, int | float) and isinstance(after, int | float) and after > before


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that change a run's bits, with their values."""
    flat: dict[str, Any] = {}
    for section, value in config.items():
        leaves = value if isinstance(value, Mapping) else {"": value}
        for leaf, inner in leaves.items():
            key = f"{section}.{leaf}" if leaf else section
            ordered = key == _ORDERED and isinstance(inner, Mapping)  # of an npz file it is a key
            if key == _NOISE and isinstance(inner, Mapping):
                flat |= {f"{key}.{name}": part for name, part in inner.items()}
            elif key == "executor":
                flat[key] = inner if inner == _VMAP else _OTHERS
            elif key in _bound(config) or not {section, key} & _FREE:
                flat |= _leaves(key, [*inner.items()] if ordered else inner)
    return flat


def _leaves(key: str, value: Any) -> dict[str, Any]:
    """Return the values within mappings, by dotted key."""
    if not isinstance(value, Mapping):
        return {key: _plain(value)}
    found: dict[str, Any] = {}
    for name, inner in value.items():
        found |= _leaves(f"{key}.{name}", inner)
    return found


def _bound(config: Mapping[str, Any]) -> frozenset[str]:
    """Return the keys that change bits, although their sections as a whole do not."""
    return _BOUND | {"cluster.vmap_clients"} if config.get("executor") == _VMAP else _BOUND


def _plain(value: Any) -> Any:
    """Return the value as JSON returns it: tuples become lists."""
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
