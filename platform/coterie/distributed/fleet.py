"""The actors of a run: started together, replaced when they die."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ray

from coterie.distributed.actors import ClientActor, ServerActor, StoredWorkload
from coterie.distributed.calls import Placed, pack_longest_first
from coterie.distributed.cluster import disconnect, has_own_resources, own_resources, slots
from coterie.distributed.startup import connect
from coterie.distributed.waiting import wait_until_ready
from coterie.errors import ConfigError, RunError
from coterie.execution.backend import Workload
from coterie.execution.events import Turn
from coterie.execution.silo_data import silo_names

_logger = logging.getLogger(__name__)


class Fleet:
    """The actors of a run: one per client if the cluster has room, else several clients per actor.

    A silo has an actor of its own, on the node with its data; it is the home of that actor.

    Args:
        workload: What the actors run; its arrays are stored once per node in the object store.
        stop: Called while waiting; raises when the run has to stop.

    Attributes:
        actors: Handles of the client actors.
        server: Handle of the server actor, or None if the server half runs in the driver.

    Raises:
        ConfigError: If not even one actor fits the cluster.
        RunError: If the cluster does not start the actors in time.
    """

    def __init__(self, workload: Workload, stop: Callable[[], None]) -> None:
        self._config = workload.config.cluster
        self.actors: list[Any] = []
        self.server: Any | None = None
        self._owns_cluster = connect(self._config)
        try:
            self.start_all(workload)
            wait_until_ready(self.actors, self._config, stop)
        except BaseException:
            self.close()
            raise

    def start_all(self, workload: Workload) -> None:
        """Place the workload and start every actor."""
        self._stored = _place(workload)
        places_server = self._config.server == "actor"
        self._names = silo_names(workload.config) if workload.silo_classes is not None else None
        free = slots(self._config) - places_server
        if free < 1:
            raise ConfigError(
                "cluster.server=actor: the server's actor takes the only slot, and none is left "
                "for clients; use cluster.server=driver or add a node."
            )
        wanted = self._config.num_actors or free
        self.size = min(wanted, len(workload.parts)) if self._names is None else len(self._names)
        if places_server:
            self.server = self._start(ServerActor, self._stored)
        homes = range(self.size) if self._names else [None] * self.size
        self._homes = {self.new_actor(home): home for home in homes}
        self.actors = list(self._homes)
        self._starting: dict[Any, tuple[Any, float]] = {}

    def replace(self, actor: Any) -> Any | None:
        """Replace an actor that died, if the cluster still has room.

        Returns:
            The new actor; None if there is no room, and the other actors have to do the work.

        Raises:
            RunError: If no actor is left.
        """
        if actor not in self.actors:  # replaced already: several of its calls were lost
            return None
        ray.kill(actor)  # it may still run on a node that cannot be reached
        home = self._homes.pop(actor)
        if not self._fits(home):
            self._remove(actor)
            return None
        new = self._start_later(home)
        self.actors[self.actors.index(actor)] = new
        return new

    def replace_server(self) -> None:
        """Replace the server's actor, which died."""
        if self.server is not None:
            ray.kill(self.server)
        self.server = self._start(ServerActor, self._stored)

    def remove_unplaced(self) -> list[Any]:
        """Remove, and return, the replacements for which the cluster has no room."""
        removed = []
        for actor, (ready, deadline) in list(self._starting.items()):
            if ray.wait([ready], timeout=0)[0]:
                del self._starting[actor]
            elif time.monotonic() > deadline or not self._fits(self._homes[actor]):
                del self._starting[actor], self._homes[actor]
                ray.kill(actor)
                self._remove(actor)
                removed.append(actor)
        return removed

    def assign(self, turns: Sequence[Turn]) -> tuple[Placed, list[Turn]]:
        """Assign turns to actors.

        Returns:
            The actors with their turns, and the turns of silos whose node is gone.
        """
        if self._names is None:
            shares = pack_longest_first(turns, len(self.actors))
            return [pair for pair in zip(self.actors, shares, strict=True) if pair[1]], []
        hosts = {home: actor for actor, home in self._homes.items()}
        for client in {turn.client for turn in turns} - hosts.keys():
            if self._fits(client):  # its node has come back
                hosts[client] = self._start_later(client)
                self.actors.append(hosts[client])
        placed: Placed = [(hosts[turn.client], (turn,)) for turn in turns if turn.client in hosts]
        return placed, [turn for turn in turns if turn.client not in hosts]

    def host(self, client: int) -> Any | None:
        """Return the actor that has a silo's data, if there is one."""
        return next((actor for actor, home in self._homes.items() if home == client), None)

    def _start_later(self, home: int | None) -> Any:
        """Start an actor without waiting for it; `remove_unplaced` looks after it."""
        new = self.new_actor(home)
        self._homes[new] = home
        self._starting[new] = new.ready.remote(), time.monotonic() + self._config.start_timeout_s
        return new

    def _fits(self, home: int | None) -> bool:
        """Whether the cluster, which may have lost nodes, has room for an actor."""
        if self._names is not None and home is not None:
            return has_own_resources(self._config, self._names[home])
        try:
            return slots(self._config) - (self.server is not None) >= len(self.actors)
        except ConfigError:
            return False

    def _remove(self, actor: Any) -> None:
        _logger.info("No node has room for an actor; %d are left", len(self.actors) - 1)
        self.actors.remove(actor)
        if not self.actors and self._names is None:
            raise RunError(
                "No node is left that holds an actor; add nodes and go on with resume=true."
            )

    def close(self) -> None:
        """End the actors and the connection, and the cluster if it was started here."""
        if not ray.is_initialized():
            return
        for actor in [*self.actors, *([self.server] if self.server else [])]:
            ray.kill(actor)
        if self._owns_cluster:
            disconnect()

    def new_actor(self, home: int | None = None) -> Any:
        """Start one actor, for a silo's data on the silo's node."""
        capped = self._config.gpus_per_client % 1.0 or None
        if home is None or self._names is None:
            return self._start(ClientActor, self._stored, capped)
        own = own_resources(self._config, self._names[home])
        return self._start(ClientActor, self._stored, capped, (home,), resources=own)

    def _start(self, kind: type, *args: Any, resources: dict[str, float] | None = None) -> Any:
        # Ray restarts no actor: the driver replaces them, so that no turn runs twice.
        options = ray.remote(kind).options(
            num_cpus=self._config.cpus_per_client,
            num_gpus=self._config.gpus_per_client,
            max_restarts=0,
            max_task_retries=0,
            resources=resources or {},
        )
        return options.remote(*args)


def _place(workload: Workload) -> StoredWorkload:
    """Put a workload's arrays into the object store."""
    samples = {split: ray.put(array) for split, array in workload.samples.items()}
    labels = None if workload.labels is None else ray.put(workload.labels)
    rest = replace(workload, samples={}, labels=None)
    return StoredWorkload(workload=rest, samples=samples, labels=labels)
