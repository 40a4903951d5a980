"""The Ray backend: one streaming call per actor and phase; dead actors are replaced."""

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import ObjectLostError, RayActorError

from coterie.aggregation.stage import Late
from coterie.contract.clusterer import Prediction
from coterie.contract.phase import ServerState
from coterie.distributed.calls import (
    LOST,
    Call,
    Deaths,
    Placed,
    fetch,
    in_turn,
    node_died,
    read_events,
    why_lost,
)
from coterie.distributed.fleet import Fleet
from coterie.distributed.handles import Keeper, Stored
from coterie.distributed.waiting import wait_for
from coterie.distributed.watch import ClusterWatch, as_run_error
from coterie.errors import RunError, StateLostError
from coterie.execution.backend import Workload
from coterie.execution.events import (
    CallDone,
    CallLost,
    ClientFailed,
    ClientTask,
    Event,
    Handle,
    PhaseRequest,
)
from coterie.execution.node_local_data import Tally
from coterie.execution.packing import Packed, pack_server
from coterie.execution.predictor import Chunk
from coterie.execution.worker import timeout_message

_POLL_S = 0.2
_GRACE = 1.25
"""An actor hangs if a task exceeds the time limit by this factor and `_GRACE_S` seconds."""
_GRACE_S = 2.0
_NO_ROOM = "no node has room for a replacement"
_NO_NODE = "no node has its data any more"
_NOT_PLACED = "its node did not start a replacement of its process in time"


class RayBackend:
    """Backend that runs clients on the actors of a Ray cluster.

    Args:
        stop: Called several times a second; raises when the run has to stop.
        note: Told what is waited for, and how many actors there are when their number changes.

    Attributes:
        devices: The names of what clients have computed on so far.
    """

    def __init__(
        self,
        workload: Workload,
        stop: Callable[[], None],
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._config = workload.config
        self._keeper, self._phase = Keeper(), ("", 0, 0, "")
        self._note = note
        watch = ClusterWatch(stop)
        self._stop = watch.check
        with as_run_error():
            self.fleet = Fleet(workload, self._stop, note)
        watch.look = self._look
        self.devices: set[str] = set()
        self._calls = 0
        self._lost: list[str] = []
        self._key = ""
        self._hosts: dict[int, Any] = {}  # calls of the phase to their actors
        self._sizes: dict[int, int] = {}  # and to their numbers of tasks

    @property
    def actors(self) -> int:
        """The present number of actors."""
        return len(self.fleet.actors)

    def execute(self, request: PhaseRequest) -> Iterator[Event]:
        """Run the tasks on the actors; a dead actor's tasks run again on other actors."""
        with as_run_error():
            yield from self._execute(request)

    def _execute(self, request: PhaseRequest) -> Iterator[Event]:
        if request.key != self._key:
            self._key, self._hosts, self._sizes = request.key, {}, {}
        self._fit(request)
        placed, unplaced = self.fleet.assign(request.tasks)
        yield from self._fail_unplaced(unplaced)
        calls = self._submit_all(request, placed)
        deaths = Deaths()
        while calls:
            self._stop()
            ready, _ = ray.wait(list(calls), num_returns=1, timeout=_POLL_S)
            for stream in in_turn(calls, ready):
                call = calls[stream]
                try:
                    events = read_events(stream, call, self._keeper.keep)
                except (*LOST, StopIteration) as error:
                    del calls[stream]
                    yield from self._lose(calls, call, error, deaths)
                    continue
                except StateLostError:
                    del calls[stream]
                    self._end_all(calls.values())
                    raise
                call.note(events)
                if isinstance(events[-1], CallDone):
                    del calls[stream]
                    self.devices |= {events[-1].device} - {""}
                    if call.rest:
                        calls |= self._submit_all(request, [(call.actor, call.rest)], alone=True)
                yield from events
            yield from self._kill_hung(calls)
            for actor in self.fleet.remove_unplaced():
                yield from self._reassign(calls, actor)

    def _lose(
        self, calls: dict[Any, Call], call: Call, error: Exception, deaths: Deaths
    ) -> Iterator[Event]:
        """Run a lost call's tasks again; only the first lost call of an actor reports its death."""
        if call.actor not in self.fleet.actors:  # it waited behind the one that died
            yield from self._resubmit(calls, call)
            return
        culprit = None if node_died(error) else deaths.culprit(call)
        why = why_lost(error)
        why = why if culprit is None else f"its process died in its tasks ({why})"
        yield CallLost(call=call.id, message=why, client=culprit)
        self._check_restarts(deaths.unexplained)
        yield from self._resubmit(calls, call, without=culprit)

    def _end_all(self, calls: Iterable[Call]) -> None:
        """Replace the actors of abandoned calls, since new calls would queue behind these."""
        for actor in {call.actor: None for call in calls}:
            self.fleet.replace(actor)

    def _look(self) -> None:
        """Check the cluster's nodes, and move client states off nodes that are being drained."""
        self.fleet.look()
        self._leave(self.fleet.leaving)

    def _fit(self, request: PhaseRequest) -> None:
        """Adapt the actors to the cluster before a phase, but not before failed tasks run again."""
        phase = request.phase.stage, request.phase.round, request.phase.step, request.phase.name
        if phase != self._phase:
            self._phase = phase
            self._stop()
            self._leave(self.fleet.fit(request.phase.stage, len(request.tasks)))

    def _leave(self, nodes: frozenset[str]) -> None:
        if moved := self._keeper.leave(nodes, self._stop):
            self._note(
                f"{moved} client states moved to the driver's node, because the run leaves their "
                "nodes."
            )

    def exchange(self, stage: str, question: str, messages: Mapping[int, Any]) -> dict[int, Any]:
        """Ask a stage of the aggregation on the actors; one that died or hangs is replaced."""
        answers: dict[int, Any] = {}
        with as_run_error():
            asked = {
                call: self._hosts[call].exchange.remote(stage, call, question, message)
                for call, message in messages.items()
            }
            until = {call: self._until(call, messages) for call in messages}
            for call, reference in asked.items():
                if not wait_for(reference, self._stop, until[call]):
                    answers[call] = Late(timeout_message(self._config.faults.client_timeout_s))
                    self.fleet.replace(self._hosts[call])
                    continue
                try:
                    answers[call] = fetch(reference)
                except LOST:
                    self.fleet.replace(self._hosts[call])
        return answers

    def _until(self, call: int, calls: Collection[int]) -> float:
        """Return the deadline of an answer: a task's time limit for each of the actor's clients."""
        limit = self._config.faults.client_timeout_s
        if limit is None:
            return math.inf
        clients = sum(self._sizes[c] for c in calls if self._hosts[c] is self._hosts[call])
        return time.monotonic() + clients * (_GRACE * limit + _GRACE_S)

    def predict(self, server: ServerState, chunks: Sequence[Chunk]) -> list[Prediction]:
        """Predict chunks on the actors, in the chunks' order."""
        with as_run_error():
            return self._predict(server, chunks)

    def _predict(self, server: ServerState, chunks: Sequence[Chunk]) -> list[Prediction]:
        self.fleet.ensure()
        self._calls += 1
        key, stored = str(self._calls), ray.put(pack_server(server))
        results: dict[int, Prediction] = {}
        waiting: dict[Any, tuple[int, Any]] = {}

        def submit(numbers: Iterable[int]) -> None:
            for i in numbers:
                actor = self.fleet.actors[i % self.actors]
                waiting[actor.predict.remote(stored, key, chunks[i])] = i, actor

        def again(actor: Any, why: str) -> None:
            """Resubmit all chunks of a lost actor, and note the loss once."""
            theirs = [reference for reference, (_, owner) in waiting.items() if owner is actor]
            self._lost += [why] if theirs else []
            submit([waiting.pop(reference)[0] for reference in theirs])

        submit(range(len(chunks)))
        lost = 0
        while waiting:
            self._stop()
            ready, _ = ray.wait(list(waiting), num_returns=1, timeout=_POLL_S)
            for reference in ready:
                i, actor = waiting[reference]
                try:
                    results[i] = fetch(reference)
                except LOST as error:
                    lost += not node_died(error)
                    self._check_restarts(lost)
                    self.fleet.replace(actor)
                    again(actor, why_lost(error))
                else:
                    del waiting[reference]
            for actor in self.fleet.remove_unplaced():
                again(actor, _NO_ROOM)
        return [results[i] for i in range(len(chunks))]

    def take_losses(self) -> list[str]:
        """Return why actors were lost outside of tasks since the last call."""
        lost, self._lost = self._lost, []
        return lost

    def tally(self, server: ServerState, clients: Sequence[int]) -> list[Tally | None]:
        """Count clusters and classes in each node-local client's data, on its node."""
        self._calls += 1
        key, stored = str(self._calls), ray.put(pack_server(server))
        hosts = [self.fleet.host(client) for client in clients]
        asked = [
            None if host is None else host.tally.remote(stored, key, client)
            for host, client in zip(hosts, clients, strict=True)
        ]
        with as_run_error():
            return [None if one is None else self._fetch_tally(one) for one in asked]

    def store(self, packed: Packed) -> Handle:
        """Put tensors into the object store; the driver owns them."""
        with as_run_error():
            return Stored(ray.put(packed))

    def fetch(self, handle: Handle) -> Packed:
        """Read tensors from the object store.

        Raises:
            StateLostError: If their node is lost.
        """
        stored: Stored = handle
        with as_run_error():
            try:
                packed: Packed = fetch(stored.reference)
            except (ObjectLostError, RayActorError) as error:  # Ray raises either for a lost object
                raise StateLostError from error
        return packed

    def rest(self) -> None:
        """End the actors, so that an autoscaler can remove their nodes; a call starts new ones."""
        self.fleet.rest()

    def close(self) -> None:
        """End the actors and the connection, and Ray if it was started here."""
        self.fleet.close()

    def _fetch_tally(self, reference: Any) -> Tally | None:
        """Return a client's tally; None if its actor died, which the next phase handles."""
        wait_for(reference, self._stop_or_place)
        try:
            found: Tally = fetch(reference)
        except LOST:
            return None
        return found

    def _stop_or_place(self) -> None:
        """Raise if the run has to stop; end replacements that have no room, with their calls."""
        self._stop()
        self.fleet.remove_unplaced()

    def _submit_all(
        self, request: PhaseRequest, placed: Placed, *, alone: bool = False
    ) -> dict[Any, Call]:
        """Make one call to each actor with tasks; return the calls by stream.

        `alone`: each actor gets its first task only, and the rest one by one.
        """
        calls = {}
        for actor, tasks in placed:
            self._calls += 1
            now, rest = (tasks[:1], tasks[1:]) if alone else (tasks, ())
            share = replace(request, tasks=now)
            stream = actor.execute.options(num_returns="streaming").remote(share, self._calls)
            self._hosts[self._calls], self._sizes[self._calls] = actor, len(now)
            calls[stream] = Call(self._calls, actor, share, alone=alone, rest=rest)
        return calls

    def _fail_unplaced(
        self, unplaced: Sequence[ClientTask], why: str = _NO_NODE
    ) -> Iterator[Event]:
        """Fail the tasks of node-local data whose node is gone or has no room."""
        for task in unplaced:
            self._calls += 1
            yield ClientFailed(call=self._calls, client=task.client, message=why)
            yield CallDone(call=self._calls, sums={})

    def _resubmit(
        self, calls: dict[Any, Call], call: Call, without: int | None = None
    ) -> Iterator[Event]:
        """Run a lost call's tasks on the actor's replacement, or else on the other actors."""
        tasks = tuple(task for task in call.tasks if task.client != without)
        new = self.fleet.replace(call.actor)
        placed, unplaced = ([(new, tasks)], []) if new else self.fleet.assign(tasks)
        if tasks:
            calls |= self._submit_all(call.request, placed, alone=True)
            yield from self._fail_unplaced(unplaced)

    def _kill_hung(self, calls: dict[Any, Call]) -> Iterator[Event]:
        """Kill actors whose client exceeds the time limit and does not stop."""
        limit = self._config.faults.client_timeout_s
        if limit is None:
            return
        for stream, call in list(calls.items()):
            if call.runs_for() > _GRACE * limit + _GRACE_S:
                if ray.wait([stream], timeout=0)[0]:
                    continue  # it has answered; this process was held up itself
                del calls[stream]
                ray.kill(call.actor)
                yield CallLost(call=call.id, message=timeout_message(limit), client=call.client)
                yield from self._resubmit(calls, call, without=call.client)

    def _reassign(self, calls: dict[Any, Call], actor: Any) -> Iterator[Event]:
        """Run the tasks of a replacement that found no room on the other actors.

        A node-local client's tasks fail: no other actor has its data.
        """
        for stream, call in list(calls.items()):
            if call.actor is actor:
                del calls[stream]
                if self.fleet.has_silos:
                    yield from self._fail_unplaced(call.tasks, _NOT_PLACED)
                    continue
                yield CallLost(call=call.id, message=_NO_ROOM)
                placed, unplaced = self.fleet.assign(call.tasks)
                calls |= self._submit_all(call.request, placed, alone=call.alone)
                yield from self._fail_unplaced(unplaced)

    def _check_restarts(self, lost: int) -> None:
        limit = self._config.cluster.max_actor_restarts
        if lost > limit:
            raise RunError(
                f"{lost} actors died in one phase, more than cluster.max_actor_restarts={limit}; "
                "check whether memory runs out, or give each client a larger share of the "
                "machine."
            )
