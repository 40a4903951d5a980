"""The state of a run for its terminal view, with its parts as text."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from coterie.contract.observer import PhaseRecord
from coterie.contract.phase import Phase
from coterie.tracking import formatting

_RECENT = 10
_LONG_S = 10.0
"""Seconds after which a first round is long."""
_WORDS = {"stragglers": "slow"}


def shown_scores(record: PhaseRecord) -> Mapping[str, float]:
    """Return the scores for a round's line: those on held-out samples, then the evaluation's."""
    scores = record.evaluation or {}
    if record.phase.up or not record.phase.open_metrics:
        return scores
    found = {("held out", name): value for name, value in record.metrics.items()}
    found |= {("validation", name.removeprefix("val/")): value for name, value in scores.items()}
    return {f"{of} {name.replace('/', ' ')}": value for (of, name), value in found.items()}


@dataclass
class Progress:
    """The progress of a run; bytes are totals of the run so far.

    Another thread draws the panel, so values are replaced and never changed in place.
    """

    clock: Callable[[], float]
    phase: Phase | None = None
    total_rounds: int | None = None
    rounds_done: int = 0
    losses: tuple[float, ...] = ()
    durations: tuple[float, ...] = ()
    round_began: float = 0.0
    phase_began: float = 0.0
    phase_seconds: float = 0.0
    cohort: int = 0
    done: set[int] = field(default_factory=set)
    failed_tasks: int = 0
    failures: int = 0
    down: int = 0
    up: int = 0
    peer: int = 0
    simulated: Mapping[str, int] = field(default_factory=dict)
    evaluation: Mapping[str, float] = field(default_factory=dict)
    epsilon: float | None = None

    def begin(self, phase: Phase, cohort: int, total_rounds: int | None) -> None:
        """Start a phase; a new stage resets losses and durations."""
        now = self.clock()
        if self.phase is None or self.phase.stage != phase.stage:
            self.losses, self.durations, self.round_began = (), (), now
        if self.phase is None or self.phase.ends_round:
            self.failed_tasks = self.failures = 0
        self.phase, self.cohort, self.total_rounds = phase, cohort, total_rounds
        self.rounds_done, self.done, self.simulated = phase.round - 1, set(), {}
        self.phase_began, self.phase_seconds = now, 0.0

    def end(self, record: PhaseRecord) -> None:
        """End a phase with its record."""
        self.phase, self.phase_seconds = record.phase, record.seconds
        self.done = set(record.participants)
        self.failures += len(record.failures)
        before = {"down": self.down, "up": self.up, "peer": self.peer, **record.bytes_before}
        self.down = before["down"] + record.bytes_down
        self.up = before["up"] + record.bytes_up
        self.peer = before["peer"] + record.bytes_peer
        self.simulated = record.simulated
        self.evaluation = shown_scores(record) or self.evaluation
        self.epsilon = record.epsilon
        if record.loss is not None:
            self.losses = (*self.losses, record.loss)[-_RECENT:]
        if record.phase.ends_round:
            now = self.clock()
            self.durations = (*self.durations, now - self.round_began)[-_RECENT:]
            self.round_began = now  # so that evaluations and checkpoints between rounds count
            self.rounds_done = record.phase.round

    @property
    def round(self) -> str:
        """The round and the number of rounds: `round 3/110`."""
        number = self.phase.round if self.phase else 0
        return f"round {number}/{self.total_rounds}" if self.total_rounds else f"round {number}"

    @property
    def eta(self) -> str:
        """The time for the remaining rounds at the mean pace of the stage's recent rounds.

        Before the first has ended, it is the time that it has taken so far.
        """
        durations, total = self.durations, self.total_rounds
        so_far = self.clock() - self.round_began if self.phase and not durations else 0.0
        if so_far >= _LONG_S:
            return f"for {formatting.format_seconds(so_far)}"
        if not durations or not total:
            return "ETA -"
        seconds = max(total - self.rounds_done, 0) * sum(durations) / len(durations)
        return f"ETA {formatting.format_seconds(seconds)}"

    @property
    def loss(self) -> str:
        """The latest loss, and whether it is below or above the mean of recent losses.

        Under differential privacy this is ε so far, after the loss if clients send any.
        """
        losses = self.losses
        if self.epsilon is not None:
            spent = f"epsilon {self.epsilon:.3g}"
            return f"loss {losses[-1]:.4f} {spent}" if losses else spent
        if len(losses) < 2:
            return f"loss {losses[0]:.4f}" if losses else "loss -"
        mean = sum(losses[:-1]) / (len(losses) - 1)
        last, before, mean = (round(value, 4) for value in (losses[-1], losses[-2], mean))
        change = 0.0 if last == before else last - mean  # one that stands is not falling any more
        word = " (falling)" if change < 0 else " (rising)" if change > 0 else ""
        return f"loss {losses[-1]:.4f}{word}"

    @property
    def traffic(self) -> str:
        """Bytes down and up, and between clients if there are any."""
        peer = f" peer {formatting.format_bytes(self.peer)}" if self.peer else ""
        return (
            f"down {formatting.format_bytes(self.down)} up {formatting.format_bytes(self.up)}{peer}"
        )

    @property
    def rate(self) -> str:
        """Clients per second in this phase."""
        seconds = self.phase_seconds or self.clock() - self.phase_began
        return f"{len(self.done) / seconds:.1f} clients/s" if seconds > 0 else "- clients/s"

    @property
    def clients(self) -> str:
        """Clients done out of the cohort: `clients 7/7 (3 absent, 1 slow)`."""
        counts = [(_WORDS.get(name, name), count) for name, count in self.simulated.items()]
        simulated = ", ".join(f"{count} {word}" for word, count in counts if count)
        return f"clients {len(self.done)}/{self.cohort}" + (f" ({simulated})" if simulated else "")
