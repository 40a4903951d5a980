"""The Ray backend: one streaming call per actor and phase, and actors that may die."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import ObjectLostError, RayActorError, RayTaskError

from coterie.contract.phase import Mean, Phase, ServerState, Tensors
from coterie.distributed.actors import ObjectKey, Report
from coterie.distributed.fleet import Fleet
from coterie.engine.backend import Workload
from coterie.engine.events import CallDone, CallLost, Event, Handle, Order, Turn, TurnDone
from coterie.engine.packing import Packed, pack, pack_server, unpack_server
from coterie.engine.predictor import Chunk
from coterie.engine.serial import build_method
from coterie.errors import RunError
from coterie.networks.clusterer import Prediction

_POLL_S = 0.2
_LOST = (RayActorError, ObjectLostError)


@dataclass(frozen=True)
class _Call:
    """A streaming call under way."""

    id: int
    actor: int
    order: Order


class RayBackend:
    """Runs clients on actors of a Ray cluster.

    Args:
        workload: What to run.
        stop: Called several times a second; raises when the run is to stop.
    """

    name = "ray"

    def __init__(self, workload: Workload, stop: Callable[[], None]) -> None:
        self._config = workload.config
        self._stop = stop
        self._fleet = Fleet(workload, stop)
        self._method = build_method(workload)
        self._calls = 0
        self.actors = self._fleet.size

    def execute(self, order: Order) -> Iterator[Event]:
        """Run the turns on the actors; a dead actor's turns run again on its replacement."""
        shares = pack_longest_first(order.turns, self.actors)
        calls = dict(
            self._submit(actor, replace(order, turns=turns))
            for actor, turns in enumerate(shares)
            if turns
        )
        lost = 0
        while calls:
            self._stop()
            ready, _ = ray.wait(list(calls), num_returns=1, timeout=_POLL_S)
            for stream in ready:
                call = calls[stream]
                try:
                    events = _read(stream)
                except (*_LOST, StopIteration) as error:
                    del calls[stream]
                    lost += 1
                    yield CallLost(call=call.id, message=type(error).__name__)
                    self._replace(call.actor, lost)
                    calls |= dict([self._submit(call.actor, call.order)])
                    continue
                if isinstance(events[-1], CallDone):
                    del calls[stream]
                yield from events

    def serve(
        self,
        server: ServerState,
        phase: Phase,
        means: Mapping[str, Mean],
        records: Mapping[int, Tensors],
    ) -> ServerState:
        """Run the server half here, or on its actor when the cluster has the GPU and we do not."""
        if self._fleet.server is None:
            return self._method.server(server, phase, means, records)
        weighted = {slot: (mean.weight, pack(mean.tensors)) for slot, mean in means.items()}
        gathered = {client: pack(tensors) for client, tensors in records.items()}
        reference = self._fleet.server.serve.remote(pack_server(server), phase, weighted, gathered)
        return unpack_server(self._fetch(reference))

    def predict(self, server: ServerState, chunks: Sequence[Chunk]) -> list[Prediction]:
        """Predict chunks on the actors, in their order."""
        self._calls += 1
        key, stored = str(self._calls), ray.put(pack_server(server))
        results: dict[int, Prediction] = {}
        waiting = {
            self._fleet.actors[i % self.actors].predict.remote(stored, key, chunk): i
            for i, chunk in enumerate(chunks)
        }
        lost = 0
        while waiting:
            self._stop()
            ready, _ = ray.wait(list(waiting), num_returns=1, timeout=_POLL_S)
            for reference in ready:
                i = waiting.pop(reference)
                try:
                    results[i] = self._fetch(reference)
                except _LOST:
                    lost += 1
                    self._replace(i % self.actors, lost)
                    again = self._fleet.actors[i % self.actors].predict.remote(
                        stored, key, chunks[i]
                    )
                    waiting[again] = i
        return [results[i] for i in range(len(chunks))]

    def store(self, packed: Packed) -> Handle:
        """Put tensors into the object store; the driver owns them."""
        return ray.put(packed)

    def fetch(self, handle: Handle) -> Packed:
        """Read tensors from the object store."""
        packed: Packed = self._fetch(handle)
        return packed

    def close(self) -> None:
        """End the actors, and Ray if it was started here."""
        self._fleet.close()

    def _submit(self, actor: int, order: Order) -> tuple[Any, _Call]:
        self._calls += 1
        call = _Call(self._calls, actor, order)
        method = self._fleet.actors[actor].execute.options(num_returns="streaming")
        return method.remote(order, call.id), call

    def _replace(self, actor: int, lost: int) -> None:
        limit = self._config.cluster.max_actor_restarts
        if lost > limit:
            raise RunError(
                f"{lost} actors died in one phase, over cluster.max_actor_restarts={limit}; "
                "look for memory running out, or give each client a larger slice."
            )
        self._fleet.replace(actor)

    @staticmethod
    def _fetch(reference: Any) -> Any:
        try:
            return ray.get(reference)
        except RayTaskError as error:
            raise error.cause from None


def pack_longest_first(turns: Sequence[Turn], actors: int) -> list[tuple[Turn, ...]]:
    """Spread turns over actors so that all end at about the same time: longest to least loaded."""
    shares: list[list[Turn]] = [[] for _ in range(actors)]
    loads = [0] * actors
    for turn in sorted(turns, key=lambda turn: (-turn.size, turn.client)):
        actor = loads.index(min(loads))
        shares[actor].append(turn)
        loads[actor] += max(1, turn.size)
    return [tuple(share) for share in shares]


def _read(stream: Any) -> list[Event]:
    """The next report's events, with references to the objects that follow it in the stream."""
    try:
        report: Report = ray.get(next(stream))
    except RayTaskError as error:
        raise error.cause from None
    handles = {key: next(stream) for key in report.objects}
    return [_attach(event, handles) for event in report.events]


def _attach(event: Event, handles: Mapping[ObjectKey, Handle]) -> Event:
    if not isinstance(event, TurnDone):
        return event
    own = [(key, ref) for (client, key), ref in handles.items() if client == event.client]
    mail = {key: ref for key, ref in own if isinstance(key, int)}
    updates = {key: ref for key, ref in own if isinstance(key, str)}
    return replace(event, state=handles.get((event.client, None)), mail=mail, updates=updates)
