"""One line on what was run, for figures and reports."""

from collections.abc import Iterable
from pathlib import PurePath

from coterie.config.component import Component, target_of
from coterie.config.explain import show
from coterie.config.schema import RunConfig


def about(configs: Iterable[RunConfig]) -> str:
    """Name method, data, partition and seed, with all values if the runs differ.

    For example "FedMCC on Digits, partition Dirichlet(clients=4, alpha=0.1), seed 0". A user's own
    data is called by its file or folder.
    """
    runs = list(configs)
    methods = _joined(_name(run.method) for run in runs)
    data = _joined(_data(run.data) for run in runs)
    partitions = _joined(_called(run.partition) for run in runs)
    seeds = _joined(str(run.seed) for run in runs)
    several = len({run.seed for run in runs}) > 1
    return f"{methods} on {data}, partition {partitions}, seed{'s' * several} {seeds}"


def _joined(names: Iterable[str]) -> str:
    """Return the distinct names, at most six of them."""
    distinct = list(dict.fromkeys(names))
    return ", ".join(distinct[:6]) + (f" and {len(distinct) - 6} others" * (len(distinct) > 6))


def _name(component: Component) -> str:
    return target_of(component).rpartition(":")[2]


def _data(component: Component) -> str:
    """Return the name of the data's file, folder or class."""
    path = getattr(component, "path", None)
    place = PurePath(path).name if isinstance(path, str) else ""
    own = getattr(component, "module", None) or ""  # a class of the user's
    return place or own.rpartition(":")[2] or _name(component)


def _called(component: Component) -> str:
    values = component.model_dump(mode="json", exclude_defaults=True)
    inner = ", ".join(f"{key}={show(value)}" for key, value in values.items())
    return f"{_name(component)}({inner})" if inner else _name(component)
