"""The stages of aggregation, between a client's contribution and the server's step.

A run composes its stages once, from its config (`pipeline`). The loop, the workers and the backends
call the hooks of this class and know no stage. All hooks do nothing here. A stage with a config of
its own, which `aggregation.stages` names by its path, has a nested class `Config`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from lightning import LightningModule
from numpy.typing import NDArray

from coterie.aggregation.exact import ExactMeans, FixedPointSum, Layout
from coterie.config.schema import RunConfig
from coterie.contract.client import Plan
from coterie.contract.method import Method
from coterie.contract.phase import Outcome, Phase, ServerState, Slots, Tensors, WeightedUpdate
from coterie.errors import ContractError

Kept = Mapping[str, Tensors]
"""What a stage keeps at the server, by slot; the run's checkpoints hold it."""

_MOST_PHASES = 10_000


@dataclass(frozen=True, kw_only=True)
class Start:
    """A run's config, method and clients before its first phase.

    Attributes:
        shape: A sample's shape.
        sizes: Client to its number of samples.
        cohort: Gives the number of clients that a phase takes, if none drops out.
        clients: Gives the clients that take part in a phase.
        trains: Whether the run is to train; one that is looked at afterwards needs no advice.
    """

    config: RunConfig
    method: Method
    server: ServerState
    shape: tuple[int, ...]
    sizes: Mapping[int, int]
    cohort: Callable[[Phase], int]
    clients: Callable[[Phase], Collection[int]]
    trains: bool = True

    def phases(self) -> Iterator[Phase]:
        """Return the coming phases, as far as they do not depend on clients' answers."""
        server = self.server
        for _ in range(_MOST_PHASES):
            try:
                phase = self.method.next(server)
            except (ContractError, KeyError):  # it needs metadata that only an answer sets
                return
            if phase is None:
                return
            yield phase
            server = server.advance(phase, {})


@dataclass(frozen=True, kw_only=True)
class PhaseRun:
    """A phase that is about to run, or has run, as the server sees it.

    Attributes:
        sizes: Client to its number of samples, for all clients that are asked.
        offered: Slot to what clients receive.
        server: Slot to what the server holds before the phase.
        layouts: Slot to the layout of its contributions.
        data: Stage to what its `request` returned.
    """

    phase: Phase
    sizes: Mapping[int, int]
    offered: Slots
    server: Slots
    layouts: Mapping[str, Layout]
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class StageTask:
    """A client's task in a phase, as one stage sees it in the client's process.

    Attributes:
        samples: Its number of samples.
        seed: Its seed for this task.
        received: Slot to what it has received.
        layouts: Slot to the layout of its contributions.
        phase_data: What the stage's `request` returned in the driver, or None.
        data: What the stage's `tasks` gave for this client, or None.
        state: What the stage kept for the client at its last task; empty at first.
        epochs: Of the trainings so far.
    """

    phase: Phase
    client: int
    samples: int
    seed: int
    received: Slots
    layouts: Mapping[str, Layout]
    phase_data: Any = None
    data: Any = None
    state: Tensors = field(default_factory=dict)
    epochs: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """A client's contribution on its way through the stages.

    Attributes:
        outcome: What the method's client half returned.
        up: Slot to what is added to the sums.
        whole: Slot to tensors that the server receives one by one, in place of a sum.
        bytes_up: Slot or key to bytes sent, where a stage sends other than the outcome's own.
        smallest: Slot to the fewest samples that a vector of it stands for, where known.
        state: Stage to what it keeps for the client until its next task.
    """

    outcome: Outcome
    up: Mapping[str, WeightedUpdate]
    whole: Slots = field(default_factory=dict)
    bytes_up: Mapping[str, int] = field(default_factory=dict)
    smallest: Mapping[str, int] = field(default_factory=dict)
    state: Mapping[str, Tensors] = field(default_factory=dict)


def require_sum(sent: Contribution, key: str) -> None:
    """Refuse tensors that a stage sends one by one where a key protects sums.

    Raises:
        ContractError: Naming the slot.
    """
    if sent.whole:
        raise ContractError(
            f"An earlier stage sends {min(sent.whole)!r} by itself, but {key} protects only sums."
        )


def besides_sums(phase: Phase) -> str:
    """Name what clients send besides sums, to the server or to each other; "" if nothing."""
    for kind, keys in (("gathered tensor", phase.gathered), ("peer message", phase.peer_messages)):
        if keys:
            return f"clients send the {kind} {min(keys)!r} in phase {phase.name!r}"
    return ""


@dataclass(frozen=True, kw_only=True)
class Sent:
    """The values that clients sent under one key in one phase, for the audit of a run.

    Attributes:
        type: A slot to be averaged, a gathered tensor for the server, a message to other clients, a
            metric, a note for people, keys of a stage's protocol, or a state that the client keeps
            and the run's checkpoints hold.
        spec: Its dtypes and shapes, as text; ranges of lengths where they differ.
        clients: The clients that sent it.
        bytes: Their bytes; 0 of a state, which is not sent.
        samples: The fewest samples that a vector of it stands for; None where that is unknown.
        summed: Where the server reads the sum alone, the number of clients in it; else 0.
        total: The samples of all clients that sent a slot.
    """

    type: Literal["slot", "gathered", "peer_message", "metric", "note", "keys", "state"]
    key: str
    spec: str
    clients: int
    bytes: int
    samples: int | None
    summed: int = 0
    total: int = 0

    def row(self) -> dict[str, Any]:
        """Return the values for `metrics.jsonl`."""
        return {name: value for name, value in asdict(self).items() if name != "total"}


class Sums(Protocol):
    """The sum over the clients of one call to a process."""

    def add(self, client: int, contributions: Mapping[str, WeightedUpdate]) -> None:
        """Add all of a client's contributions, or none if one is refused."""

    @property
    def sums(self) -> Mapping[str, FixedPointSum]:
        """Each slot's exact sum; empty if the driver must not have it yet."""


@dataclass(frozen=True)
class Late:
    """Stand-in for the answer of a process that did not answer in time and was ended."""

    why: str


class Gathering(Protocol):
    """A phase whose tasks are done, for stages that need another exchange with clients' processes.

    Attributes:
        sums: The exact sums over all clients so far.
        calls: Call to the clients whose tasks in it count.
    """

    sums: ExactMeans
    calls: dict[int, frozenset[int]]

    @property
    def retries(self) -> bool:
        """Whether the policy gives a failed client a second try."""

    def exchange(self, stage: str, question: str, messages: Mapping[int, Any]) -> dict[int, Any]:
        """Call a stage in the processes of these calls; lost calls are absent from the result.

        Returns:
            Call to answer, or `Late`.
        """

    def lose(self, calls: Mapping[int, str], lost: str) -> dict[int, str]:
        """Discard the tasks of lost calls, and return why each of their clients has failed.

        Args:
            calls: Call to why it was ended, "" if its process is lost.
            lost: Why clients have failed of whom nobody knows which one hangs.
        """

    def run_again(self, clients: Collection[int]) -> None:
        """Run these clients' tasks again, then apply the policy."""

    def note(self, client: int | None, message: str, remedy: str) -> None:
        """Record a failure."""

    def count(self, key: str, up: Mapping[int, int], down: Mapping[int, int]) -> None:
        """Count bytes under a key with the clients' results."""


class Stage:
    """A stage of the aggregation; its hooks are listed in the order in which a run calls them.

    Attributes:
        name: Its name, unique in a run; its data and states go by it.
    """

    name: ClassVar[str]

    def check(self, start: Start) -> None:
        """Refuse, before the run, what the stage cannot handle.

        Raises:
            ConfigError: Naming the key.
        """

    def ends(self, phase: Phase, clients: Sequence[int]) -> str:
        """Return a sentence if the run ends before this phase; "" if it continues."""
        return ""

    def offers(self, phase: Phase, server: Slots, kept: Kept) -> Slots:
        """Return additional slots that clients receive, and may send back to be averaged."""
        return {}

    def request(self, run: PhaseRun) -> Any:
        """Return what the clients' processes need to know about this phase; None if nothing.

        Raises:
            ConfigError: If the stage cannot work with the phase.
        """
        return None

    def tasks(self, run: PhaseRun) -> Mapping[int, Any]:
        """Return what is attached to each client's task."""
        return {}

    def training(
        self, module: LightningModule, plan: Plan, task: StageTask
    ) -> AbstractContextManager[None]:
        """Return a context in which the client trains."""
        return nullcontext()

    def noisy(
        self, sums: NDArray[np.int64], sigma: int, purpose: str, task: StageTask
    ) -> NDArray[np.int64] | None:
        """Return the integers with the client's own noise, see `Client.noisy`."""
        return None

    def contribute(self, sent: Contribution, task: StageTask) -> Contribution:
        """Change what a client sends, in the client's process.

        Raises:
            ContractError: If it is refused; the client's task has failed.
        """
        return sent

    def hides(self, task: StageTask) -> bool:
        """Return whether a client's failure must not show its values."""
        return False

    def sums(self, key: str, call: int, layouts: Mapping[str, Layout], data: Any) -> Sums | None:
        """Return what accumulates a call's contributions in a process; None for plain exact sums.

        Args:
            key: The key of the phase's run, which no other has.
            call: The call.
            layouts: Slot to layout.
            data: What `request` returned.
        """
        return None

    def answer(self, call: int, question: str, message: Any) -> Any:
        """Answer a question of `collect` in the process of a call."""
        raise NotImplementedError(f"{self.name} asks nothing")

    def collect(self, run: PhaseRun, gathering: Gathering) -> None:
        """Complete the sums after the phase's tasks, before the sums are read."""

    def total(self, run: PhaseRun, sums: ExactMeans) -> Mapping[str, WeightedUpdate] | None:
        """Return the slots' means over all clients; None for the plain means."""
        return None

    def join(
        self, run: PhaseRun, whole: Mapping[str, Callable[[], Sequence[Tensors]]]
    ) -> Mapping[str, WeightedUpdate]:
        """Return the results of slots that the server received as single contributions.

        Args:
            run: The phase.
            whole: Slot to a function that reads the clients' tensors, in client order.
        """
        return {}

    def step(
        self, run: PhaseRun, means: Mapping[str, WeightedUpdate], kept: Kept
    ) -> tuple[Mapping[str, WeightedUpdate], Kept]:
        """Change what the method's server half receives.

        Args:
            run: The phase.
            means: Slot to mean.
            kept: What the stage keeps at the server.

        Returns:
            The means, and what the stage keeps now.
        """
        return means, kept

    def audit(
        self, rows: Sequence[Sent], run: PhaseRun, means: Mapping[str, WeightedUpdate]
    ) -> Sequence[Sent]:
        """Return what clients sent, as far as the server could read it."""
        return rows

    def metrics(self, phase: Phase) -> Mapping[str, float]:
        """Return numbers about the run up to a phase."""
        return {}

    def summary(self) -> Mapping[str, float | str]:
        """Return numbers about the whole run, for its summary."""
        return {}

    def count(self) -> int:
        """Return a number for the checkpoint, which a resumed run must agree with."""
        return 0
