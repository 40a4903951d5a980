"""Stages of training, one after the other."""

from dataclasses import dataclass
from typing import Generic, TypeVar

StageT = TypeVar("StageT")


@dataclass(frozen=True)
class Schedule(Generic[StageT]):
    """Stages in order, each with its number of rounds.

    Attributes:
        stages: Pairs (stage, rounds). A stage of 0 rounds is skipped.
    """

    stages: tuple[tuple[StageT, int], ...]

    @property
    def rounds(self) -> int:
        """The number of rounds of all stages together."""
        return sum(rounds for _, rounds in self.stages)

    @property
    def last(self) -> StageT:
        """The last stage."""
        return self.stages[-1][0]

    def at(self, number: int) -> StageT | None:
        """Return the stage of a round, counted from 1; None after the last round."""
        for stage, rounds in self.stages:
            if number <= rounds:
                return stage
            number -= rounds
        return None
