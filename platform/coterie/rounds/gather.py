"""Collects a phase's events, and applies the failure policy."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from coterie.aggregation.exact import ExactMeans
from coterie.aggregation.pipeline import Pipeline
from coterie.aggregation.stage import PhaseRun
from coterie.config.schema import FaultsConfig
from coterie.contract.phase import Tensors, WeightedUpdate
from coterie.errors import ConfigError, CoterieError, InterruptedRunError, RunError
from coterie.execution.backend import Backend
from coterie.execution.events import (
    CallDone,
    CallLost,
    ClientFailed,
    ClientResult,
    ClientTask,
    Event,
    Handle,
    PhaseRequest,
)
from coterie.execution.packing import unpack

FAILURES = "failures.log"
"""The log of failed tasks' tracebacks in a run's folder."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A failed client, or a lost actor where `client` is None."""

    round: int
    phase: str
    client: int | None
    message: str
    remedy: str

    def __str__(self) -> str:
        """Return the failure as one sentence."""
        who = "an actor" if self.client is None else f"client {self.client}"
        return f"round {self.round}, {self.phase}: {who} failed ({self.message}); {self.remedy}"


@dataclass(frozen=True, kw_only=True)
class PhaseResult:
    """The result of a phase.

    Attributes:
        means: Slot to mean over the clients that contributed.
        client_results: The tasks that count, in client order.
        failures: All failures, those that a retry made good too.
        dropped: Clients without a task that counts.
    """

    means: Mapping[str, WeightedUpdate]
    client_results: tuple[ClientResult, ...]
    failures: tuple[Failure, ...]
    dropped: tuple[int, ...]

    @property
    def gathered(self) -> dict[int, Tensors]:
        """Gathered tensors by client, in client order, for the clients that sent any."""
        return {
            done.client: unpack(done.gathered)
            for done in self.client_results
            if done.gathered.fields
        }

    @property
    def states(self) -> dict[int, Handle | None]:
        """What each client keeps for its next task."""
        return {done.client: done.state for done in self.client_results}


def run_phase(
    backend: Backend,
    request: PhaseRequest,
    run: PhaseRun,
    pipeline: Pipeline,
    faults: FaultsConfig,
    *,
    watch: Callable[[Event], None],
    abandoned: Callable[[Sequence[Failure]], None] = lambda failures: None,
) -> PhaseResult:
    """Run every task of a phase, repeat failed ones if the policy says so, and aggregate.

    `watch` is called with every event, `abandoned` with all failures if the phase cannot be
    completed.

    Raises:
        ConfigError: If every client refuses the config.
        RunError: If a client fails under `fail`, or fewer than `min_participation` succeed.
    """
    gather = _Gather(backend, request, faults, watch, ExactMeans(dict(request.layouts)))
    try:
        gather.run(request.tasks)
        pipeline.collect(run, gather)
        gather.check_policy()
    except InterruptedRunError:
        raise  # the phase runs again, and so do those that failed
    except CoterieError:
        gather.note_failed("the phase failed")
        abandoned(gather.failures)
        raise
    gather.note_failed("dropped from the phase")
    tasks = tuple(gather.done[client] for client in sorted(gather.done))
    means = {**pipeline.total(run, gather.sums), **pipeline.join(run, _whole(tasks, backend))}
    return PhaseResult(
        means=means,
        # Without their updates, which the object store would then hold for another phase.
        client_results=tuple(replace(task, updates={}) for task in tasks),
        failures=tuple(gather.failures),
        dropped=tuple(sorted(gather.failed)),
    )


def _whole(
    results: Sequence[ClientResult], backend: Backend
) -> dict[str, Callable[[], Sequence[Tensors]]]:
    """Return, for each slot, a function that reads the updates which clients sent one by one."""
    handles: dict[str, list[Handle]] = {}
    for done in results:
        for slot, handle in done.updates.items():
            handles.setdefault(slot, []).append(handle)

    def read(given: Sequence[Handle]) -> list[Tensors]:
        return [unpack(backend.fetch(handle)) for handle in given]

    return {slot: partial(read, given) for slot, given in handles.items()}


@dataclass
class _Gather:
    """Receiver of events that holds a call's tasks back until its sums arrive.

    It is the `Gathering` of the aggregation's stages.
    """

    backend: Backend
    request: PhaseRequest
    faults: FaultsConfig
    watch: Callable[[Event], None]
    sums: ExactMeans
    done: dict[int, ClientResult] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    failures: list[Failure] = field(default_factory=list)
    traced: bool = False  # whether a failed task has a traceback, for the log
    calls: dict[int, frozenset[int]] = field(default_factory=dict)
    _staged: dict[int, list[ClientResult | ClientFailed]] = field(default_factory=dict)

    @property
    def retries(self) -> bool:
        """Whether a failed client has a second try."""
        return self.faults.on_client_failure == "retry"

    def run(self, tasks: Sequence[ClientTask]) -> None:
        """Run tasks, and failed ones once more if the policy says so; then apply the policy."""
        pending = tuple(tasks)
        for attempt in range(2 if self.retries else 1):
            if attempt:
                for task in sorted(pending, key=lambda task: task.client):
                    self.note(task.client, self.failed[task.client], "retried")
            for event in self.backend.execute(replace(self.request, tasks=pending)):
                self._take(event)
                self.watch(event)
            pending = tuple(task for task in tasks if task.client not in self.done)
            if not pending:
                break
            for task in pending:  # a task without any event is a failure too
                self.failed.setdefault(task.client, "its call ended without an answer")
        self.check_policy()

    def run_again(self, clients: Collection[int]) -> None:
        """Run these clients' tasks again, if there are any; then apply the policy."""
        if tasks := [task for task in self.request.tasks if task.client in clients]:
            self.run(tasks)
        else:
            self.check_policy()

    def exchange(self, stage: str, question: str, messages: Mapping[int, Any]) -> dict[int, Any]:
        """Call a stage in the processes of these calls."""
        return self.backend.exchange(stage, question, messages)

    def lose(self, calls: Mapping[int, str], lost: str) -> dict[int, str]:
        """Discard the tasks of lost calls, and return why each of their clients has failed."""
        found: dict[int, str] = {}
        for call, why in calls.items():
            clients = self.calls.pop(call)
            # Of several clients, nobody knows which one hangs.
            found |= dict.fromkeys(clients, why if why and len(clients) == 1 else lost)
        for client in found:
            del self.done[client]
        self.failed |= found
        return found

    def count(self, key: str, up: Mapping[int, int], down: Mapping[int, int]) -> None:
        """Count bytes under a key with the clients' tasks."""
        for client, task in self.done.items():
            self.done[client] = replace(
                task,
                bytes_up={**task.bytes_up, key: up.get(client, 0)},
                bytes_down={**task.bytes_down, key: down.get(client, 0)},
            )

    def note_failed(self, remedy: str) -> None:
        """Record the failure of each client whose task does not count."""
        for client, message in sorted(self.failed.items()):
            self.note(client, message, remedy)

    def note(self, client: int | None, message: str, remedy: str) -> None:
        """Record a failure."""
        self.failures.append(
            Failure(
                round=self.request.phase.round,
                phase=self.request.phase.name,
                client=client,
                message=message,
                remedy=remedy,
            )
        )

    def _take(self, event: Event) -> None:
        if isinstance(event, ClientResult | ClientFailed):
            self._staged.setdefault(event.call, []).append(event)
        elif isinstance(event, CallLost):
            self._staged.pop(event.call, None)
            if event.client is None:
                self.note(None, event.message, "replaced, its clients run again")
            else:
                self.failed[event.client] = event.message
        elif isinstance(event, CallDone):
            self.sums.merge(event.sums)
            tasks = self._staged.pop(event.call, [])
            if done := frozenset(task.client for task in tasks if isinstance(task, ClientResult)):
                self.calls[event.call] = done
            for task in tasks:
                self._settle(task)

    def _settle(self, done: ClientResult | ClientFailed) -> None:
        self.refused.discard(done.client)
        if isinstance(done, ClientResult):
            self.done[done.client] = done
            self.failed.pop(done.client, None)
            return
        self.failed[done.client] = done.message
        self.traced |= bool(done.trace)
        if done.refused:
            self.refused.add(done.client)

    def check_policy(self) -> None:
        """Raise if a client must not fail, or if too few have succeeded."""
        faults, number = self.faults, self.request.phase.round
        if self.failed and not self.done and self.refused == self.failed.keys():
            raise ConfigError(self.failed[min(self.refused)])
        see = f" see {FAILURES} in the run's folder," if self.traced else ""
        for client, message in sorted(self.failed.items()):
            if faults.on_client_failure == "fail":
                raise RunError(
                    f"Client {client} failed in round {number} ({message});{see} "
                    "correct its data, or set faults.on_client_failure=drop."
                )
        asked = len(self.request.tasks)
        if len(self.done) / max(1, asked) < faults.min_participation:
            first = next(iter(self.failed.values()), "no reason known")
            raise RunError(
                f"Round {number}: {len(self.done)} of {asked} clients "
                f"succeeded, below faults.min_participation={faults.min_participation} "
                f"(first failure: {first});{see} correct what fails"
                f"{', or lower that share,' if self.done else ''} and go on with resume=true."
            )
