"""The actors of a run: started together, replaced one by one."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ray
import torch
from ray.exceptions import RayActorError

from coterie.config.schema import ClusterConfig
from coterie.distributed.actors import ClientActor, ServerActor, StoredWorkload
from coterie.distributed.cluster import cluster_has_gpu, connect, slots
from coterie.engine.backend import Workload
from coterie.errors import ConfigError, RunError

_logger = logging.getLogger(__name__)


class Fleet:
    """One actor per client as long as slots allow; several clients per actor beyond that.

    Args:
        workload: What the actors run; its arrays are placed once per node in the object store.
        stop: Called while waiting; raises when the run is to stop.

    Attributes:
        actors: Handles of the client actors.
        server: Handle of the server actor, or None if the server half runs on the driver.

    Raises:
        ConfigError: If not even one actor fits the cluster.
        RunError: If the cluster does not grant the actors in time.
    """

    def __init__(self, workload: Workload, stop: Callable[[], None]) -> None:
        self._config = workload.config.cluster
        self._owns_cluster = connect(self._config)
        self._stored = _place(workload)
        places_server = server_needs_actor(self._config)
        free = slots(self._config) - places_server
        wanted = self._config.num_actors or max(1, free)
        self.size = min(wanted, len(workload.parts))
        self.server = self._start(ServerActor, self._stored) if places_server else None
        self.actors = [self._new() for _ in range(self.size)]
        self._starting: dict[Any, tuple[Any, float]] = {}
        self._wait(stop)

    def replace(self, actor: Any) -> Any | None:
        """Put a new actor in the place of one that died, if the cluster still has room for it.

        Returns:
            The new actor; None if there is none, and the others have to do its work.

        Raises:
            RunError: If no actor is left.
        """
        if actor not in self.actors:  # replaced already: several of its calls were lost
            return None
        ray.kill(actor)  # it may live on where it cannot be reached
        if self._room() < len(self.actors):
            self._remove(actor)
            return None
        new = self._new()
        self.actors[self.actors.index(actor)] = new
        self._starting[new] = new.ready.remote(), time.monotonic() + self._config.start_timeout_s
        return new

    def give_up(self) -> list[Any]:
        """Replacements that will not start, for there is no room for them; now removed."""
        given_up = []
        for actor, (ready, deadline) in list(self._starting.items()):
            if ray.wait([ready], timeout=0)[0]:
                del self._starting[actor]
            elif time.monotonic() > deadline or self._room() < len(self.actors):
                del self._starting[actor]
                ray.kill(actor)
                self._remove(actor)
                given_up.append(actor)
        return given_up

    def _room(self) -> int:
        """How many client actors the cluster holds as it is now; it may have lost a node."""
        try:
            return slots(self._config) - (self.server is not None)
        except ConfigError:
            return 0

    def _remove(self, actor: Any) -> None:
        _logger.info("There is no room for an actor any more; %d are left", len(self.actors) - 1)
        self.actors.remove(actor)
        if not self.actors:
            raise RunError("No node is left that holds an actor; add nodes and go on with "
                           "resume=true.")  # fmt: skip

    def close(self) -> None:
        """End the actors, and the cluster if it was started here."""
        if not ray.is_initialized():
            return
        for actor in [*self.actors, *([self.server] if self.server else [])]:
            ray.kill(actor)
        if self._owns_cluster:
            ray.shutdown()

    def _new(self) -> Any:
        slice_ = self._config.gpus_per_client % 1.0 or 1.0
        fraction = self._config.gpu_memory_fraction or slice_
        capped = fraction if self._config.gpus_per_client > 0 and fraction < 1.0 else None
        return self._start(ClientActor, self._stored, capped)

    def _start(self, kind: type, *args: Any) -> Any:
        # Actors never restart by themselves: the driver replaces them, so that nothing runs twice.
        options = ray.remote(kind).options(
            num_cpus=self._config.cpus_per_client,
            num_gpus=self._config.gpus_per_client,
            max_restarts=0,
            max_task_retries=0,
        )
        return options.remote(*args)

    def _wait(self, stop: Callable[[], None]) -> None:
        waiting = [actor.ready.remote() for actor in self.actors]
        deadline = time.monotonic() + self._config.start_timeout_s
        try:
            while waiting:
                stop()
                ready, waiting = ray.wait(waiting, num_returns=1, timeout=0.5)
                ray.get(ready)
                if waiting and time.monotonic() > deadline:
                    raise RunError(self._missing(len(waiting)))
        except RayActorError as error:
            reason = str(error).strip().splitlines()[-1]
            raise RunError(f"An actor died while it started ({reason}); see Ray's logs.") from error

    def _missing(self, waiting: int) -> str:
        each = f"{self._config.cpus_per_client:g} CPU, {self._config.gpus_per_client:g} GPU"
        free = {k: v for k, v in ray.available_resources().items() if k in {"CPU", "GPU"}}
        return (
            f"cluster.start_timeout_s={self._config.start_timeout_s:g}: {waiting} of {self.size} "
            f"actors ({each} each) were not granted, free are {free}; "
            "lower cluster.num_actors or add nodes."
        )


def server_needs_actor(config: ClusterConfig) -> bool:
    """Whether the server half goes to an actor: as configured, or if only the cluster has GPUs."""
    if config.server == "auto":
        wants_gpu = config.gpus_per_client > 0
        return wants_gpu and not torch.cuda.is_available() and cluster_has_gpu()
    return config.server == "actor"


def _place(workload: Workload) -> StoredWorkload:
    samples = {split: ray.put(array) for split, array in workload.samples.items()}
    labels = None if workload.labels is None else ray.put(workload.labels)
    bare = replace(workload, samples={}, labels=None)
    return StoredWorkload(workload=bare, samples=samples, labels=labels)
