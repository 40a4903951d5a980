"""The actors of a run: as many as the cluster has room for, and replaced when they die."""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayTaskError

from coterie.distributed.actors import ClientActor, StoredWorkload
from coterie.distributed.calls import LOST, Placed, node_died, pack_longest_first
from coterie.distributed.cluster import (
    alone_on_its_node,
    connect,
    disconnect,
    free_actors,
    has_own_resources,
    leaves_gpus,
    own_resources,
    started_here,
)
from coterie.distributed.nodes import autoscales, leaving, node_of
from coterie.distributed.waiting import CrashedError, raise_if_dead, wait_until_ready
from coterie.errors import ConfigError, RunError
from coterie.execution.backend import Workload
from coterie.execution.events import ClientTask
from coterie.execution.node_local_data import node_local_names

_logger = logging.getLogger(__name__)

_MOST_ASKED = 256
"""Actors without room that wait for the autoscaler's nodes at a time."""
_NONE_LEFT = "No node is left that holds an actor; add nodes and go on with resume=true."


class Fleet:
    """The actors of a run: one per client if the cluster has room, else several clients per actor.

    Before each phase `fit` follows the cluster: actors join when nodes have, and go when their node
    is about to go. Where an autoscaler adds nodes, actors without room wait as Ray's demand, which
    ends with them, so that drivers on one cluster do not overwrite each other's. A node-local
    client has an actor of its own, on the node with its data; it is the home of that actor.

    Args:
        workload: What the actors run; its arrays are stored once per node in the object store.
        note: Told what is waited for, and how many actors there are when their number changes.

    Attributes:
        actors: Handles of the client actors that can be given work.
        joining: Handles of actors that are not ready yet, each with the reference of its `ready`.
        wanted: How many actors have work.
        leaving: Ids of the nodes that are about to go.

    Raises:
        ConfigError: If not even one actor fits the cluster, and it does not grow.
        RunError: If the cluster does not start the actors in time.
    """

    def __init__(
        self,
        workload: Workload,
        stop: Callable[[], None],
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._config = workload.config.cluster
        self._stop, self._note = stop, note
        self._stage, self._tasks, self._stillborn = "", 0, 0
        self.actors: list[Any] = []
        self.leaving = frozenset[str]()
        self.joining: dict[Any, Any] = {}
        self._owns_cluster = connect(self._config)
        if workload.config.accelerator == "auto" and leaves_gpus(self._config):
            note("The cluster has a GPU, which this run does not use; add cluster=gpu to use it.")
        try:
            self.start_all(workload)
            least = None if self._config.num_actors or self._names else 1
            self._wait(self._config.min_actors or least)
        except BaseException:
            self.close()
            raise

    @property
    def has_silos(self) -> bool:
        """Whether each actor has the data of one node-local client."""
        return self._names is not None

    def start_all(self, workload: Workload) -> None:
        """Place the workload and start every actor."""
        self._stored = StoredWorkload.of(workload)
        self._names = (
            node_local_names(workload.config) if workload.node_local_classes is not None else None
        )
        if self._names is not None and started_here():
            self._share_cpus(len(self._names))
        most = len(workload.parts) if self._names is None else len(self._names)
        self._grows = autoscales()
        self._free = self._room_at_start()
        if self._grows and self._names is None:
            most = _cohort(workload)
        size = most if self._grows else max(self._free, self._config.min_actors or 1)
        self.wanted = most if self._names else min(self._config.num_actors or size, most)
        homes = range(self.wanted) if self._names else [None] * min(self.wanted, _MOST_ASKED)
        self._homes = {self.new_actor(home): home for home in homes}
        self.actors = list(self._homes)
        self._starting: dict[Any, tuple[Any, float]] = {}

    def _share_cpus(self, clients: int) -> None:
        """Lower the CPUs of each client where this machine's are too few for all of them."""
        cpus = ray.cluster_resources().get("CPU", 1.0)
        if clients * self._config.cpus_per_client > cpus:
            share = math.floor(100 * cpus / clients) / 100 or 0.01
            self._config = self._config.model_copy(update={"cpus_per_client": share})
            self._note(
                f"The data's {clients} clients share this machine's {cpus:g} CPUs, as with "
                f"cluster.cpus_per_client={share:g}."
            )

    def _room_at_start(self) -> int:
        """Return how many client actors fit the cluster; under an autoscaler it may be none."""
        try:
            return free_actors(self._config)
        except ConfigError:
            if self._grows:
                return 0
            raise

    def look(self) -> None:
        """Check the cluster's nodes, for `fit`; called about once a second."""
        self.leaving = leaving()
        try:
            self._free = free_actors(self._config)
        except ConfigError:
            self._free = 0

    def fit(self, stage: str, tasks: int) -> frozenset[str]:
        """Adapt to the cluster before a phase.

        Actors that have joined get work from now on. Those whose node is about to go end, if
        others are left. Where an autoscaler takes idle nodes away, actors that a new stage does not
        need end too.

        Returns:
            The nodes that the run leaves; client states there have to move.

        Raises:
            RunError: If there is no actor, and none joins in time.
        """
        if self._names is not None:
            return self.leaving
        new, self._stage = stage != self._stage, stage
        self._tasks = tasks if new else max(self._tasks, tasks)
        self.wanted = min(self._tasks, self._config.num_actors or self._tasks)
        self._take_in()
        going = [] if not self.leaving else self._on(self.leaving)
        if len(going) < len(self.actors):
            self._end(going, "their node is about to go")
            going = []
        left = self._release() if new and self._grows else frozenset[str]()
        self._ask(self.wanted, len(self.actors) - len(going))
        self.ensure()
        return self.leaving | left

    def ensure(self) -> None:
        """Wait for an actor if there is none."""
        if self.actors:
            return
        if not self.joining:
            self._ask(1, 0)
        if not self.joining:
            raise RunError(_NONE_LEFT)
        self.actors = list(self.joining)
        self.joining = {}
        self._wait(1)

    def rest(self) -> None:
        """End all actors, so that the cluster can shrink; `fit` and `ensure` start new ones."""
        for actor in [*self.actors, *self.joining]:
            ray.kill(actor)
        self.actors, self._homes, self._starting, self.joining = [], {}, {}, {}

    def _wait(self, least: int | None) -> None:
        """Wait until this number of actors is ready, by default all; the others join later.

        One that crashes as it starts is replaced, as it would be later.
        """
        told = (lambda text: None) if started_here() else self._note  # there is always room
        for left in range(self._config.max_actor_restarts, -1, -1):
            try:
                late = wait_until_ready(self.actors, self._config, self._stop, least, told)
                break
            except CrashedError as error:
                if not left:
                    raise
                home = self._homes.pop(error.actor)
                new = self.new_actor(home)
                self._homes[new] = home
                self.actors[self.actors.index(error.actor)] = new
        self.joining |= late
        self.actors = [actor for actor in self.actors if actor not in self.joining]

    def _take_in(self) -> None:
        """Add the actors that have become ready to those in use."""
        if not self.joining:
            return
        ready, _ = ray.wait(list(self.joining.values()), num_returns=len(self.joining), timeout=0)
        arrived = [actor for actor, reference in self.joining.items() if reference in ready]
        before = len(self.actors)
        for actor in arrived:
            reference = self.joining.pop(actor)
            try:
                ray.get(reference)
            except LOST as error:
                del self._homes[actor]
                self._stillborn += not node_died(error)
                if self._stillborn > self._config.max_actor_restarts:
                    raise_if_dead(reference)
            except RayTaskError:
                raise_if_dead(reference)
            else:
                self.actors.append(actor)
        if len(self.actors) > before:
            self._note(f"Actors: {len(self.actors)} ({len(self.actors) - before} joined).")

    def _ask(self, wanted: int, staying: int) -> None:
        """Start missing actors, beyond the cluster's room only to make an autoscaler add nodes."""
        most = wanted if self._grows or self._config.num_actors else min(wanted, self._free)
        for _ in range(min(most - staying, _MOST_ASKED) - len(self.joining)):
            new = self.new_actor()
            self._homes[new] = None
            self.joining[new] = new.ready.remote()

    def _on(self, nodes: frozenset[str]) -> list[Any]:
        return [actor for actor in self.actors if node_of(actor) in nodes]

    def _release(self) -> frozenset[str]:
        """End actors without work, whole nodes first, and return the nodes that have none left."""
        spare = max(0, len(self.actors) + len(self.joining) - self.wanted)
        for actor in list(self.joining)[:spare]:
            del self.joining[actor], self._homes[actor]
            ray.kill(actor)
        surplus = max(0, len(self.actors) - self.wanted)
        places = {actor: node_of(actor) or "" for actor in self.actors} if surplus else {}
        crowds = Counter(places.values())
        idle = sorted(places, key=lambda actor: (crowds[places[actor]], places[actor]))[:surplus]
        self._end(idle, "this stage has no work for them")
        return frozenset(places[actor] for actor in idle) - {places.get(a) for a in self.actors}

    def _end(self, actors: Sequence[Any], why: str) -> None:
        for actor in actors:
            ray.kill(actor)
            self.actors.remove(actor)
            del self._homes[actor]
            self._starting.pop(actor, None)
        if actors:
            self._note(f"Actors: {len(self.actors)} ({len(actors)} ended, as {why}).")

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

    def assign(self, tasks: Sequence[ClientTask]) -> tuple[Placed, list[ClientTask]]:
        """Assign tasks to actors.

        Returns:
            The actors with their tasks, and the tasks of node-local data whose node is gone.
        """
        if self._names is None:
            shares = pack_longest_first(tasks, len(self.actors))
            return [pair for pair in zip(self.actors, shares, strict=True) if pair[1]], []
        hosts = {home: actor for actor, home in self._homes.items()}
        for client in {task.client for task in tasks} - hosts.keys():
            if self._fits(client):  # its node has come back
                hosts[client] = self._start_later(client)
                self.actors.append(hosts[client])
        placed: Placed = [(hosts[task.client], (task,)) for task in tasks if task.client in hosts]
        return placed, [task for task in tasks if task.client not in hosts]

    def host(self, client: int) -> Any | None:
        """Return the actor with a node-local client's data, if there is one."""
        return next((actor for actor, home in self._homes.items() if home == client), None)

    def _start_later(self, home: int | None) -> Any:
        """Start an actor without waiting for it; `remove_unplaced` checks on it."""
        new = self.new_actor(home)
        self._homes[new] = home
        self._starting[new] = new.ready.remote(), time.monotonic() + self._config.start_timeout_s
        return new

    def _fits(self, home: int | None) -> bool:
        """Return whether the cluster, which may have lost nodes, has room for an actor."""
        if self._names is not None and home is not None:
            return has_own_resources(self._config, self._names[home])
        if self._grows and len(self.actors) == 1:
            return True  # the autoscaler makes room for the last one
        self.look()
        return self._free >= len(self.actors)

    def _remove(self, actor: Any) -> None:
        _logger.info("No node has room for an actor; %d are left", len(self.actors) - 1)
        self.actors.remove(actor)
        if not self.actors and self._names is None:
            raise RunError(_NONE_LEFT)

    def close(self) -> None:
        """End the actors and the connection, and the cluster if it was started here."""
        if not ray.is_initialized():
            return
        self.rest()
        if self._owns_cluster:
            disconnect()

    def new_actor(self, home: int | None = None) -> Any:
        """Start one actor, for node-local data on its client's node."""
        capped = self._config.gpus_per_client % 1.0 or None
        alone = alone_on_its_node(self._config)
        if home is None or self._names is None:
            return self._start(self._stored, capped, resources=alone)
        own = alone | own_resources(self._config, self._names[home])
        return self._start(self._stored, capped, (home,), resources=own)

    def _start(self, *args: Any, resources: Mapping[str, float]) -> Any:
        """Start an actor with a client's CPUs and GPUs, and some of the nodes' resources."""
        share = {"num_cpus": self._config.cpus_per_client, "num_gpus": self._config.gpus_per_client}
        # Ray restarts no actor: the driver replaces them, so that no task runs twice.
        once = {"max_restarts": 0, "max_task_retries": 0}
        return ray.remote(ClientActor).options(**share | once, resources=resources).remote(*args)


def _cohort(workload: Workload) -> int:
    """Return how many clients take part in a round, by the config."""
    config, clients = workload.config.participation, len(workload.parts)
    if config.count is not None:
        return config.count
    return clients if config.fraction is None else math.ceil(config.fraction * clients)
