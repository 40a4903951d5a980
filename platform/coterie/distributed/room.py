"""How many whole runs fit beside each other, by the CPUs and GPUs that each asks for."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from coterie.config.schema import ClusterConfig, RunConfig

Resources = Mapping[str, float]
"""Amounts of "CPU" and "GPU"."""

HERE = "this machine"


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
        wanted = {"CPU": float(cluster.threads_per_client), "GPU": 0.0}
    else:
        clients = getattr(config.partition, "clients", None)
        actors = cluster.num_actors or (clients if isinstance(clients, int) else None)
        if actors is None:
            return dict(held)
        wanted = {"CPU": actors * cluster.cpus_per_client, "GPU": actors * cluster.gpus_per_client}
    return {kind: min(amount, held.get(kind, 0.0)) for kind, amount in wanted.items()}


def _cpus() -> int:
    """The CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass
class Room:
    """What is free, place by place.

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
        if self.limit is not None:
            if len(self._taken) >= self.limit:
                return False
            self._taken[run] = HERE, {}
            return True
        place = place_of(config.cluster)
        if place not in self._held:
            self._held[place] = capacity(config.cluster)
        wanted = need(config, self._held[place])
        used = [amounts for where, amounts in self._taken.values() if where == place]
        for kind, amount in wanted.items():
            free = self._held[place][kind] - sum(amounts.get(kind, 0.0) for amounts in used)
            if used and amount > free + 1e-9:
                return False
        self._taken[run] = place, wanted
        return True

    def give_back(self, run: int) -> None:
        """A run has ended."""
        del self._taken[run]
