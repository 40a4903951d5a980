"""A Ray cluster that is a script: actors answer, die or hang as a test says, without a process."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from ray.exceptions import ActorDiedError, ActorUnavailableError

from coterie.config.schema import ClusterConfig, FaultsConfig
from coterie.contract.phase import Phase
from coterie.distributed import backend, calls, fleet, waiting
from coterie.distributed.backend import RayBackend
from coterie.distributed.fleet import Fleet
from coterie.execution.events import CallDone, ClientStarted, ClientTask, Event, PhaseRequest


@dataclass(eq=False)
class Stream:
    """A call's stream: `reports` are unread, and then its actor's death or nothing."""

    actor: "Actor"
    request: PhaseRequest
    call: int
    read: int = 0


@dataclass(eq=False)
class Actor:
    """An actor that works off its calls in order.

    Attributes:
        fate: None, or the error of whoever calls it.
        starts: Whether it is ever ready.
    """

    fate: Exception | None = None
    starts: bool = True
    queue: list[Stream] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.execute = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._execute))
        self.ready = SimpleNamespace(remote=lambda: ("ready", self))
        self.tally = SimpleNamespace(remote=lambda *_: ("tally", self))

    def _execute(self, request: PhaseRequest, call: int) -> Stream:
        self.queue.append(Stream(self, request, call))
        return self.queue[-1]


@dataclass
class ScriptedRay:
    """What `ray` is to the fleet and the backend.

    Attributes:
        free: Client actors that the cluster has room for.
        reports: A call's reports, by its first client; by default it is done at once.
        fatal: The first clients of calls in which their actor dies.
        once: Those in which it dies the first time only.
        new: Makes a replacement.
        killed: Actors that were killed.
    """

    free: int
    reports: Callable[[Stream], list[list[Event]]] = lambda s: [[CallDone(call=s.call, sums={})]]
    fatal: set[int] = field(default_factory=set)
    once: set[int] = field(default_factory=set)
    new: Callable[[], Actor] = Actor
    killed: list[Actor] = field(default_factory=list)

    def wait(
        self, found: list[Any], num_returns: int = 1, timeout: float = 0.0
    ) -> tuple[list[Any], list[Any]]:
        """The first that is ready."""
        ready = [one for one in found if self._is_ready(one)][:num_returns]
        return ready, [one for one in found if one not in ready]

    def get(self, reference: tuple[str, Actor]) -> None:
        """An actor's answer that it is ready, or its death."""
        if reference[1].fate is not None:
            raise reference[1].fate

    def kill(self, actor: Actor) -> None:
        """End an actor."""
        self.killed.append(actor)
        actor.fate = actor.fate or ActorDiedError()

    def read(self, stream: Stream, call: Any, keep: Any) -> list[Event]:
        """Read a stream's next report, or its actor's death."""
        client = stream.request.tasks[0].client
        if stream.actor.fate is None and client in self.fatal | self.once:
            stream.actor.fate = ActorDiedError()
            self.once.discard(client)
        if stream.actor.fate is not None:
            stream.actor.queue.remove(stream)
            raise stream.actor.fate
        stream.read += 1
        events = self.reports(stream)[stream.read - 1]
        if isinstance(events[-1], CallDone):
            stream.actor.queue.remove(stream)
        return events

    def _is_ready(self, one: Any) -> bool:
        if isinstance(one, tuple):
            return one[1].fate is not None or (one[0] == "ready" and one[1].starts)
        if one.actor.fate is not None:
            return True
        fatal = one.request.tasks[0].client in self.fatal | self.once
        return self._is_first(one) and (fatal or one.read < len(self.reports(one)))

    def _is_first(self, stream: Stream) -> bool:
        return stream.actor.starts and stream.actor.queue[0] is stream


class ScriptedFleet(Fleet):
    """A fleet of scripted actors."""

    def __init__(self, ray: ScriptedRay, config: ClusterConfig, names: Any, count: int) -> None:
        self._config, self._names, self._ray = config, names, ray
        self._stop, self._note = (lambda: None), (lambda text: None)
        self._grows = False
        self._stored = None
        self.leaving, self.joining, self._starting = frozenset(), {}, {}
        homes = range(count) if names else [None] * count
        self._homes = {Actor(): home for home in homes}
        self.actors = list(self._homes)
        self.look()

    def look(self) -> None:
        """Take the script's room."""
        self._free = self._ray.free

    def _start(self, *args: Any, **options: Any) -> Actor:
        return self._ray.new()


def scripted_backend(
    monkeypatch: Any,
    ray: ScriptedRay,
    actors: int,
    *,
    names: Any = None,
    faults: FaultsConfig | None = None,
    **cluster: Any,
) -> RayBackend:
    """A backend on a script, with its fleet."""
    for module in (backend, calls, fleet, waiting):
        monkeypatch.setattr(module, "ray", ray)
    monkeypatch.setattr(backend, "read_events", ray.read)
    built = object.__new__(RayBackend)
    config = ClusterConfig(**cluster)
    built._config = SimpleNamespace(cluster=config, faults=faults or FaultsConfig())
    built._keeper = SimpleNamespace(keep=lambda r: r, leave=lambda nodes, stop: 0)
    built._stop, built._note = (lambda: None), (lambda text: None)
    built.fleet = ScriptedFleet(ray, config, names, actors)
    built._calls, built._lost, built._key, built._hosts, built._sizes = 0, [], "", {}, {}
    built.devices = set()
    built._fit = lambda request: None
    return built


def request(clients: int) -> PhaseRequest:
    """A phase with as many clients."""
    tasks = tuple(ClientTask(client=c, size=10, seed=0) for c in range(clients))
    phase = Phase(round=1, stage="s", name="train")
    return PhaseRequest(phase=phase, slots={}, layouts={}, tasks=tasks)


def started(stream: Stream) -> list[Event]:
    """The report of a task's start."""
    return [ClientStarted(call=stream.call, client=stream.request.tasks[0].client)]


def losing_its_node() -> Exception:
    """What a call raises whose node cannot be reached."""
    return ActorUnavailableError("its node", None)
