"""Every method, found by itself: the choices of configs/method, each with a small run on digits."""

from typing import Any

from coterie.commands.compose import compose, experiments, groups, read_choice
from coterie.config.component import Component
from coterie.errors import DataError
from coterie.run.data import read_and_split
from tests.unit.modules.test_method_contract import CAPS

CHOICES = tuple(groups()["method"])


def base(choice: str) -> tuple[str, ...]:
    """The experiment of this method on digits, or that of a method of the same file."""
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
    """The fields that say how long a method runs, cut down to their caps."""
    return {
        name: cap
        for name, value in dict(config).items()
        for ending, cap in CAPS.items()
        if name.endswith(ending) and type(value) is int and value > cap
    }


def _file(choice: str) -> str:
    target: str = read_choice("method", choice)["target"]
    return target.partition(":")[0]
