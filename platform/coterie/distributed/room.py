"""How many whole runs fit beside each other, by the CPUs and GPUs that each asks for."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from coterie.config.schema import ClusterConfig, RunConfig

Resources = Mapping[str, float]
"""Amounts of "CPU" and "GPU", and on this machine of each GPU by its CUDA name."""

HERE = "this machine"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_ROUNDING = 1e-9


def place_of(cluster: ClusterConfig) -> str:
    """Where a run's clients run: a cluster's address, or this machine."""
    if cluster.backend == "serial":
        return HERE
    address = cluster.address or os.environ.get("RAY_ADDRESS") or "local"
    return HERE if address == "local" else address


def capacity(cluster: ClusterConfig) -> Resources:
    """What there is where a run's clients run.

    Raises:
        RunError: If no cluster answers at the config's address.
    """
    if place_of(cluster) == HERE:
        return {"CPU": float(_cpus()), "GPU": float(torch.cuda.device_count())}
    import ray

    from coterie.distributed.cluster import connect, disconnect

    ours = connect(cluster)
    try:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    finally:
        if ours:
            disconnect()
    return {kind: sum(node.get(kind, 0.0) for node in nodes) for kind in ("CPU", "GPU")}


def need(config: RunConfig, held: Resources) -> Resources:
    """What a run takes of what there is; all of it where it would take as much as it can get."""
    cluster = config.cluster
    if cluster.backend == "serial":
        gpus = float(config.accelerator != "cpu")
        wanted = {"CPU": float(cluster.threads_per_client), "GPU": gpus}
    else:
        actors = cluster.num_actors or config.partition.client_count
        if actors is None:
            return dict(held)
        wanted = {"CPU": actors * cluster.cpus_per_client, "GPU": actors * cluster.gpus_per_client}
    return {kind: min(amount, held.get(kind, 0.0)) for kind, amount in wanted.items()}


def _cpus() -> int:
    """The CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _names(count: int) -> list[str]:
    """What CUDA calls the GPUs that this process may use."""
    visible = os.environ.get(_VISIBLE)
    return visible.split(",")[:count] if visible else [str(number) for number in range(count)]


def _count(cluster: ClusterConfig, gpus: float) -> int:
    """On how many GPUs so much lies, in slices of which none spans two."""
    slice_ = cluster.gpus_per_client if cluster.backend == "ray" else 1.0
    if not 0 < slice_ < 1:
        return math.ceil(gpus - _ROUNDING)
    on_each = int(1 / slice_ + _ROUNDING)
    return math.ceil(gpus / slice_ / on_each - _ROUNDING)


@dataclass
class Room:
    """What is free, place by place.

    A cluster shares its GPUs out itself. On this machine each run would begin with the first GPU,
    so each is given GPUs of its own here.

    Args:
        limit: Runs at a time whatever they need; None goes by what they need.
    """

    limit: int | None = None
    _held: dict[str, Resources] = field(default_factory=dict)
    _taken: dict[int, tuple[str, Resources]] = field(default_factory=dict)

    def take(self, run: int, config: RunConfig) -> bool:
        """Make room for a run, if there is any; whatever it needs, one may always run.

        Args:
            run: Its number.
            config: What it runs.
        """
        limited = self.limit is not None
        if self.limit is not None and len(self._taken) >= self.limit:
            return False
        place = place_of(config.cluster)
        if limited and place != HERE:
            self._taken[run] = place, {}
            return True
        if place not in self._held:
            self._held[place] = capacity(config.cluster)
        wanted = need(config, self._held[place])
        if place == HERE:
            wanted = {**wanted, **self._shares(config.cluster, wanted["GPU"])}
        alone = not any(where == place for where, _ in self._taken.values())
        if not (limited or alone or self._fits(place, wanted)):
            return False
        self._taken[run] = place, wanted
        return True

    def environment(self, run: int) -> dict[str, str]:
        """What to set for a run's process: the GPUs that it was given, if it was given any."""
        _, amounts = self._taken[run]
        given = [kind for kind in amounts if kind not in {"CPU", "GPU"}]
        return {_VISIBLE: ",".join(given)} if given else {}

    def give_back(self, run: int) -> None:
        """A run has ended."""
        del self._taken[run]

    def _shares(self, cluster: ClusterConfig, gpus: float) -> Resources:
        """How much a run gets of which of this machine's GPUs: of those with most room."""
        names = _names(int(self._held[HERE]["GPU"]))
        names.sort(key=lambda name: -self._free(HERE, name))
        given = names[: _count(cluster, gpus)]
        return dict.fromkeys(given, gpus if len(given) == 1 else 1.0)

    def _fits(self, place: str, wanted: Resources) -> bool:
        return all(amount <= self._free(place, kind) + _ROUNDING for kind, amount in wanted.items())

    def _free(self, place: str, kind: str) -> float:
        used = (amounts.get(kind, 0.0) for where, amounts in self._taken.values() if where == place)
        return self._held[place].get(kind, 1.0) - sum(used)
