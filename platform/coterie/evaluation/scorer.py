"""What scores the server states of a run."""

from typing import Protocol

from coterie.contract.phase import ServerState
from coterie.evaluation.result import Evaluation


class Scorer(Protocol):
    """Scores server states.

    Attributes:
        sent: Bytes that crossed for it; the recorder takes them into the ledger.
        missed: Clients that could not be reached for it; the recorder takes them as failures.
    """

    sent: int
    missed: tuple[int, ...]

    @property
    def group(self) -> str:
        """What scores between rounds are about: "clustering", "train" or "test"."""

    def due(self, round_: int, last: bool) -> bool:
        """Whether an evaluation follows this round."""

    def quick(self, server: ServerState) -> dict[str, float]:
        """Clustering metrics between rounds."""

    def final(self, server: ServerState) -> Evaluation:
        """The last evaluation."""
