"""The terminal view of a search for hyperparameters, at most 80 columns wide."""

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from coterie.studies.study_view import StudyView
from coterie.studies.tune_plan import short_names
from coterie.studies.tune_table import TuneTable
from coterie.tracking.formatting import display_path


class TuneView(StudyView):
    """Terminal view of running and ended trials, and at the end the table."""

    def conclude(self, found: TuneTable, outputs: Sequence[Path]) -> None:
        """Show the table, what is chosen, the trials that failed, and the files worth opening."""
        self.close()
        self.show(trials_table(found))
        for text in (found.sentence, *found.problems, *map(display_path, outputs)):
            self.note(text)


def trials_table(found: TuneTable) -> Table:
    """Return a row for each trial.

    The chosen one marked, its point, how it ended, the objective.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", no_wrap=True)
    for name in short_names(found.trials[0].point).values():
        table.add_column(name, justify="right", overflow="fold")
    table.add_column("round", justify="right", no_wrap=True)
    table.add_column("ended", no_wrap=True)
    table.add_column(found.objective.replace("/", "\n", 1), justify="right", no_wrap=True)
    for trial in found.trials:
        value = "–" if trial.value is None else f"{trial.value:.4f}"
        mark = "*" if trial is found.chosen else ""
        cells = map(Text, (*trial.point.values(), str(trial.rounds), trial.record.status, value))
        table.add_row(mark, *cells)
    return table
