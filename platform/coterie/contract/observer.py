"""Callbacks of the round loop for observers: a terminal view, a test, a notebook."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from coterie.config.record_names import Status
from coterie.contract.phase import Phase

Scores = Mapping[str, Mapping[str, float]]
"""Name of a result to its metrics: {"FedMCC": {"ACC": 0.91}, "k-means on pixels": {…}}."""


@dataclass(frozen=True, kw_only=True)
class PhaseRecord:
    """The results of one finished phase.

    Attributes:
        phase: The phase.
        participants: Ids of the clients whose task succeeded, ascending.
        failures: One sentence per client that was dropped or per actor that was lost.
        loss: Mean training loss over the participants; None where nothing was trained.
        metrics: Other means over the participants, by name.
        bytes_down: Bytes sent from the server to clients.
        bytes_up: Bytes sent from clients to the server.
        bytes_peer: Bytes sent from clients to clients.
        bytes_before: Bytes that the run had sent before, by "down", "up" and "peer".
        seconds: Wall-clock time of the phase.
        client_seconds: Wall-clock time of each participant's task, in their order.
        simulated: Number of clients simulated as "absent", "dropped" or "stragglers".
        evaluation: Scores of the evaluation that followed, by name; None if there was none.
        epsilon: ε so far; None where nobody adds noise.
    """

    phase: Phase
    participants: tuple[int, ...]
    failures: tuple[str, ...] = ()
    loss: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    bytes_down: int = 0
    bytes_up: int = 0
    bytes_peer: int = 0
    bytes_before: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    client_seconds: tuple[float, ...] = ()
    simulated: Mapping[str, int] = field(default_factory=dict)
    evaluation: Mapping[str, float] | None = None
    epsilon: float | None = None


class Observer(Protocol):
    """Callbacks of the round loop, called in the driver's thread in the order of events.

    An observer must not change the run.
    """

    def start(self, title: str, details: Mapping[str, str]) -> None:
        """Note that the run begins.

        Args:
            title: The experiment's name.
            details: What to show by name: method, data set, clients, device.
        """

    def table(self, table: object) -> None:
        """Show a table, either rich's or plain text."""

    def phase_started(self, phase: Phase, cohort_size: int, total_rounds: int | None) -> None:
        """Note that a phase begins.

        Args:
            phase: The phase.
            cohort_size: Number of clients that have a task.
            total_rounds: Rounds of the whole run over all stages; None if unknown.
        """

    def client_done(self, client: int, metrics: Mapping[str, float]) -> None:
        """Note that a client's task succeeded, with the means of its training's scalars."""

    def client_failed(self, client: int, message: str) -> None:
        """Note that a client's task failed; the engine decides whether to retry it."""

    def phase_finished(self, record: PhaseRecord) -> None:
        """Note that a phase is over: aggregated and, where due, evaluated."""

    def evaluated(self, round_: int, scores: Mapping[str, float], *, final: bool) -> None:
        """Note that an evaluation is over.

        Args:
            round_: The round.
            scores: Metrics by their names in metrics.jsonl: {"clustering/acc": 0.91, …}.
            final: Whether it is the one at the end of the run.
        """

    def note(self, text: str) -> None:
        """Note an event worth a line, such as a resumed checkpoint or a replaced actor."""

    def finish(
        self,
        status: Status,
        *,
        error: str | None = None,
        scores: Scores | None = None,
        outputs: Sequence[Path] = (),
    ) -> None:
        """Note that the run is over; called exactly once, also after a failure or an interruption.

        Args:
            status: How it ended.
            error: Why it did not complete, in one sentence.
            scores: The final comparison.
            outputs: Files to open: figures, the summary.
        """
