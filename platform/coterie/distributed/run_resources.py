"""CPUs and GPUs for several runs at once: the total, what a run needs, and what is free."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch

from coterie.config.schema import ClusterConfig, RunConfig

Resources = Mapping[str, float]
"""Amounts of "CPU" and "GPU"; on this machine also of each GPU, by its CUDA name."""

HERE = "this machine"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_ROUNDING = 1e-9


def place_of(cluster: ClusterConfig) -> str:
    """Return where a run's clients run: a cluster's address, or `HERE`."""
    if cluster.backend == "serial":
        return HERE
    address = cluster.address or os.environ.get("RAY_ADDRESS") or "local"
    return HERE if address == "local" else address


def capacity(cluster: ClusterConfig) -> Resources:
    """Return the CPUs and GPUs of the place where a run's clients run.

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
    """Return what a run needs; everything if its size is unknown."""
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
    """Return how many CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _names(count: int) -> list[str]:
    """Return the CUDA names of the GPUs that this process may use."""
    visible = os.environ.get(_VISIBLE)
    return visible.split(",")[:count] if visible else [str(number) for number in range(count)]


def _count(cluster: ClusterConfig, gpus: float) -> int:
    """Return how many GPUs are needed for an amount, if no client's share spans two GPUs."""
    slice_ = cluster.gpus_per_client if cluster.backend == "ray" else 1.0
    if not 0 < slice_ < 1:
        return math.ceil(gpus - _ROUNDING)
    on_each = int(1 / slice_ + _ROUNDING)
    return math.ceil(gpus / slice_ / on_each - _ROUNDING)


@dataclass
class RunResources:
    """Reservations of CPUs and GPUs for whole runs, separately for each place.

    A Ray cluster assigns GPUs itself. On this machine every run would use the first GPU, so each
    is given GPUs of its own.

    Args:
        limit: Runs at a time, whatever they need; "auto": as many as the resources allow.
    """

    limit: int | Literal["auto"] = "auto"
    _held: dict[str, Resources] = field(default_factory=dict)
    _taken: dict[int, tuple[str, Resources]] = field(default_factory=dict)

    def take(self, run: int, config: RunConfig) -> bool:
        """Reserve what a run needs, if it is free; a single run may always start."""
        limited = self.limit != "auto"
        if self.limit != "auto" and len(self._taken) >= self.limit:
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
        """Return environment variables that give a run's process its GPUs."""
        _, amounts = self._taken[run]
        given = [kind for kind in amounts if kind not in {"CPU", "GPU"}]
        return {_VISIBLE: ",".join(given)} if given else {}

    def give_back(self, run: int) -> None:
        """Release what a run reserved."""
        del self._taken[run]

    def _shares(self, cluster: ClusterConfig, gpus: float) -> Resources:
        """Choose a run's GPUs on this machine: those with the most free capacity."""
        names = _names(int(self._held[HERE]["GPU"]))
        names.sort(key=lambda name: -self._free(HERE, name))
        given = names[: _count(cluster, gpus)]
        return dict.fromkeys(given, gpus if len(given) == 1 else 1.0)

    def _fits(self, place: str, wanted: Resources) -> bool:
        return all(amount <= self._free(place, kind) + _ROUNDING for kind, amount in wanted.items())

    def _free(self, place: str, kind: str) -> float:
        used = (amounts.get(kind, 0.0) for where, amounts in self._taken.values() if where == place)
        return self._held[place].get(kind, 1.0) - sum(used)
