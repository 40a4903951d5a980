"""The result of a search for hyperparameters: its trials in order, and the chosen one."""

from collections.abc import Sequence
from dataclasses import dataclass

from coterie.studies.tune_plan import Point
from coterie.tracking.csv_text import csv_text
from coterie.tracking.run_records import RunRecord


@dataclass(frozen=True)
class TrialResult:
    """The state and scores of a trial."""

    point: Point
    record: RunRecord
    objective: str

    @property
    def value(self) -> float | None:
        """The objective of the final model, or else of the last evaluation.

        None without any, or if it is not a number, as after training that diverged.
        """
        name, record = self.objective, self.record
        if name in record.numbers or name in record.unscored:
            return record.numbers.get(name)
        measured = [row[name] for row in record.rows if name in row]
        return None if not measured or measured[-1] is None else float(measured[-1])

    @property
    def rounds(self) -> int:
        """The last round that has ended."""
        return max((int(row["round"]) for row in self.record.rows), default=0)


@dataclass(frozen=True)
class TuneTable:
    """The trials of a search, in order: completed ones first, and the best first.

    Attributes:
        lower: Whether less of it is better.
        blind: Whether it needs no labels.
    """

    trials: tuple[TrialResult, ...]
    objective: str
    lower: bool
    blind: bool

    @classmethod
    def of(
        cls, trials: Sequence[TrialResult], objective: str, *, lower: bool, blind: bool
    ) -> "TuneTable":
        """Put trials in order."""

        def place(trial: TrialResult) -> tuple[bool, bool, float]:
            value, completed = trial.value, trial.record.completed
            rank = 0.0 if value is None else value if lower else -value
            return not completed, value is None, rank

        return cls(tuple(sorted(trials, key=place)), objective, lower, blind)

    @property
    def chosen(self) -> TrialResult | None:
        """The completed trial with the best objective; None if none or all have it."""
        first = self.trials[0]
        if self._tied:
            return None
        return first if first.record.completed and first.value is not None else None

    @property
    def _tied(self) -> int:
        """The number of completed trials, if there are several and all have the same objective."""
        found = [trial.value for trial in self.trials if trial.record.completed]
        return len(found) if len(found) > 1 and len({*found}) == 1 and found[0] is not None else 0

    @property
    def sentence(self) -> str:
        """Two lines: which trial is chosen by what, and whether labels were used to choose."""
        by = f"by {self.objective}, the {'least' if self.lower else 'largest'}"
        labels = "without labels" if self.blind else "with labels"
        if self._tied:
            return (
                f"None is chosen: all {self._tied} trials have the same {self.objective}, "
                f"{self.trials[0].value:.4g}, so take another objective or space."
            )
        if self.chosen is None:
            return f"None is chosen: no trial has completed with {self.objective}."
        seen = self.objective.partition("/")[0] in ("test", "clustering_test")
        high = "; its own score is too good, since the test set chose it" if seen else ""
        return f"Chosen {labels}, {by}{high}:\n  {self.chosen.record.label}"

    @property
    def problems(self) -> list[str]:
        """A sentence for each trial that neither completed nor was stopped."""
        records = [trial.record for trial in self.trials]
        return [
            f"{record.label}: {record.status}" + (f": {record.error}" if record.error else ".")
            for record in records
            if record.status not in ("completed", "stopped")
        ]

    def csv(self) -> str:
        """Return every trial's point, objective and final numbers as CSV in full precision."""
        numbers = dict.fromkeys(name for trial in self.trials for name in trial.record.numbers)
        names = [self.objective, *(name for name in numbers if name != self.objective)]
        lines: list[Sequence[object]] = [
            ["chosen", "trial", "status", "round", *self.trials[0].point, *names]
        ]
        for trial in self.trials:
            record, found = trial.record, {**trial.record.numbers, self.objective: trial.value}
            chosen = "yes" if trial is self.chosen else ""
            place = [chosen, record.label, record.status, trial.rounds]
            lines.append([*place, *trial.point.values(), *map(found.get, names)])
        return csv_text(lines)
