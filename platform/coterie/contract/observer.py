"""What the round loop tells whoever watches it: a terminal view, a test, a notebook."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from coterie.contract.phase import Phase

Status = Literal["completed", "failed", "interrupted"]
"""How a run ended."""

Scores = Mapping[str, Mapping[str, float]]
"""What was compared to its metrics: {"FedMCC": {"ACC": 0.91}, "k-means on pixels": {…}}."""


@dataclass(frozen=True, kw_only=True)
class PhaseRecord:
    """What happened in one finished phase.

    Attributes:
        phase: The phase that was carried out.
        participants: Ids of the clients whose turn succeeded, ascending.
        failures: One sentence per client that was dropped or per actor that was lost.
        loss: Mean training loss over the participants; None where nothing was trained.
        metrics: Further means over the participants, by name.
        bytes_down: Bytes sent from the server to clients.
        bytes_up: Bytes sent from clients to the server.
        bytes_peer: Bytes sent from clients to clients.
        bytes_before: What the run had sent before this phase, as "down", "up" and "peer".
        seconds: Wall-clock time of the phase.
        simulated: Clients simulated to be "absent", "dropped" or "stragglers", where any can be.
        evaluation: Scores of the evaluation that followed, by name; None if there was none.
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
    simulated: Mapping[str, int] = field(default_factory=dict)
    evaluation: Mapping[str, float] | None = None


class Observer(Protocol):
    """Callbacks of the round loop, all in the driver's own thread, in the order of events.

    An observer only watches: nothing it does may change the run.
    """

    def start(self, title: str, facts: Mapping[str, str]) -> None:
        """The run begins.

        Args:
            title: The experiment's name.
            facts: What is worth knowing at a glance, by name: method, data set, clients, device.
        """

    def table(self, table: object) -> None:
        """Show a table, rich's or plain text."""

    def phase_started(self, phase: Phase, cohort_size: int, total_rounds: int | None) -> None:
        """A phase begins.

        Args:
            phase: The phase.
            cohort_size: How many clients will take their turn.
            total_rounds: Rounds of the whole run over all stages; None if nobody knows.
        """

    def client_done(self, client: int, metrics: Mapping[str, float]) -> None:
        """A client's turn succeeded, with these scalars of its training."""

    def client_failed(self, client: int, message: str) -> None:
        """A client's turn failed; whether it is tried again is the engine's policy."""

    def phase_finished(self, record: PhaseRecord) -> None:
        """A phase is over, aggregated and, if it was due, evaluated."""

    def note(self, text: str) -> None:
        """Something worth a line: a checkpoint resumed from, an actor replaced."""

    def finish(
        self,
        status: Status,
        *,
        error: str | None = None,
        scores: Scores | None = None,
        outputs: Sequence[Path] = (),
    ) -> None:
        """The run is over; called exactly once, after a failure or an interruption too.

        Args:
            status: How it ended.
            error: Why it did not complete, as one sentence.
            scores: The final comparison.
            outputs: Files worth opening: figures, the summary.
        """
