"""The choices of `method=`: the classes of `coterie.modules`, found in their source.

A choice is called like its class in lower case (`FedMCC`: `fedmcc`), or like its file where these
differ by underscores alone (`ppfc_gan`). The first sentence of the class's docstring is that of
`--help`. Nothing is imported, since methods import PyTorch. YAML in `configs/method` comes first.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

from hydra.core.config_store import ConfigStore

from coterie.commands.own_class_keys import OPTIMIZERS, STRATEGIES

_OWN = "for your own LightningModule; give experiment=lightning"
_LAYERS = f"it keeps layers with their clients, {_OWN} method.personal=[NAMES]"
ELSEWHERE = {
    **{name: f"it is a strategy {_OWN} method.strategy={name}" for name in STRATEGIES},
    **{
        name: f"it is an optimiser of the server; give aggregation.optimizer={optimizer} with any "
        "method that averages, such as experiment=fedavg"
        for name, optimizer in OPTIMIZERS.items()
    },
    **dict.fromkeys(("fedbn", "fedper"), _LAYERS),
}
"""Names that people look for among the methods, and where to find them."""
METHOD = "method"
_MODULES = Path(__file__).resolve().parent.parent / "modules"
_CLASS = re.compile(
    r'''^class\ (?P<name>[A-Za-z]\w*)[^:]*:.*         # to the colon, over several lines too
        (?:\n\ {4}"""(?P<about>.*?)(?:"""|$))?       # the docstring's first line
        (?P<body>(?:\n(?:\ .*)?)*)                   # lines that are empty or indented''',
    re.MULTILINE | re.VERBOSE,
)


class MethodChoice(NamedTuple):
    """A method that can be chosen by name: its target, and its first sentence."""

    target: str
    about: str


@cache
def shipped_methods() -> Mapping[str, MethodChoice]:
    """Return each method by name: the public classes with a nested `Config`."""
    found = {}
    for path in sorted(_MODULES.glob("*.py")):
        # By text, because each command reads all of them, and parsing takes 20 times as long.
        for each in _CLASS.finditer(path.read_text(encoding="utf-8")):
            if "\n    class Config(" in each["body"]:
                target = f"coterie.modules.{path.stem}:{each['name']}"
                found[_name(path.stem, each["name"])] = MethodChoice(
                    target, _sentence(each["about"] or "")
                )
    return found


@contextmanager
def methods_in_hydra(besides: Collection[str] = ()) -> Iterator[None]:
    """Let Hydra find the methods as choices, except those that have YAML."""
    store = ConfigStore.instance()
    surrounding = store.repo  # a notebook may use Hydra itself
    store.repo = {**surrounding, METHOD: {}}
    try:
        for name in shipped_methods().keys() - set(besides):
            store.store(group=METHOD, name=name, node={"target": shipped_methods()[name].target})
        yield
    finally:
        store.repo = surrounding


def _sentence(line: str) -> str:
    return re.split(r"(?<=\.) (?=[A-Z])", line)[0]


def _name(stem: str, name: str) -> str:
    return stem if stem.replace("_", "") == name.lower() else name.lower()
