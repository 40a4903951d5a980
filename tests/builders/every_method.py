"""Every method, found by itself: the classes of modules/ and the choices of `method=`.

Fields whose names end as in `CAPS` are cut down, so that a run takes a moment; a method that counts
its length or its widths in other words adds them there.
"""

import importlib
import inspect
import pkgutil
from typing import Any

import modules
from coterie.commands.compose import compose, experiments, groups, read_choice
from coterie.config.component import Component
from coterie.errors import DataError
from coterie.run.data import read_and_split

CAPS = {
    "rounds": 2,
    "iterations": 2,
    "epochs": 1,
    "batch_size": 8,
    "global_steps": 10,
    "total_steps": 5,
    "_every": 2,
    "_size": 8,
    "hidden": 16,
    "bottleneck": 16,
    "projection": 16,
    "_width": 4,
}


def discover() -> list[type]:
    """Every method: the classes of `modules/` that have a config of their own."""
    found = []
    for info in pkgutil.iter_modules(modules.__path__, "coterie.modules."):
        module = importlib.import_module(info.name)
        found += [
            kind
            for _, kind in inspect.getmembers(module, inspect.isclass)
            if kind.__module__ == info.name and "Config" in vars(kind)
        ]
    return found


EVERY = [kind for kind in discover() if not hasattr(kind, "module_for")]
"""Without that of a user's own module, which has tests of its own."""
METHODS = [kind for kind in EVERY if kind.__name__ != "MAE"]
"""Those that take any encoder; MAE takes vision transformers alone."""


CHOICES = tuple(name for name in groups()["method"] if name != "lightning")


def base(choice: str) -> tuple[str, ...]:
    """This experiment; of a method that on digits, or that of a method of the same file."""
    if choice not in CHOICES:
        return (f"experiment={choice}",)
    if f"{choice}_digits" in experiments():
        return (f"experiment={choice}_digits",)
    file = _file(choice)
    sister = next(c for c in CHOICES if f"{c}_digits" in experiments() and _file(c) == file)
    return (f"experiment={sister}_digits", f"method={choice}")


def small(choice: str) -> tuple[str, ...]:
    """A run of some seconds: 200 images, and the method's lengths cut down as `CAPS` says."""
    given, few = base(choice), ("data.limit=200",)
    method: Any = compose(*given).method
    try:
        read_and_split(compose(*given, *few))
    except DataError:  # its clients want more of some class
        few = ()
    return (*given, *few, *(f"method.{k}={v}" for k, v in cut(method).items()))


def cut(config: Component) -> dict[str, int]:
    """The fields that say how long a method runs and how wide it is, cut down to their caps."""
    return {
        name: cap
        for name, value in dict(config).items()
        for ending, cap in CAPS.items()
        if name.endswith(ending) and type(value) is int and value > cap
    }


def short(kind: Any) -> Component:
    """The default config of a method's class, cut short."""
    return kind.Config(**cut(kind.Config()))


def _file(choice: str) -> str:
    target: str = read_choice("method", choice)["target"]
    return target.partition(":")[0]
