"""The terminal view of a study and of its table, at most 80 columns wide."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from coterie.studies.comparison_table import ComparisonTable, foremost
from coterie.studies.plan import short_names
from coterie.studies.tune_table import TuneTable
from coterie.tracking import formatting
from coterie.tracking.run_records import RunRecord
from coterie.tracking.terminal import Terminal

WIDTH = 80
_LABEL = 28
_CELL = 15


class StudyView:
    """Terminal view of the runs under way and, line by line, the runs that have ended."""

    def __init__(
        self,
        mode: Literal["auto", "live", "lines", "none"] = "auto",
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console or Terminal()
        live = self._console.is_terminal and not self._console.is_dumb_terminal
        auto = "live" if live and not os.environ.get("CI") else "lines"
        self._mode = auto if mode == "auto" else mode
        self._clock = clock
        self._began = self._last = 0.0
        self._total = self._todo = self._done = 0
        self._live: Live | None = None

    def begin(self, total: int, todo: int) -> None:
        """Show how many runs there are, and how many have completed before."""
        self._began, self._total, self._todo = self._clock(), total, todo
        self._done = 0
        kept = f", {total - todo} of them completed before" if total > todo else ""
        self.note(f"{total} runs{kept}")
        if self._mode == "live" and todo:
            self._live = Live(console=self._console, transient=True, refresh_per_second=4)
            self._live.start()

    def started(self, name: str) -> None:
        """Show that a run's process has started."""
        if self._mode == "lines":
            self.note(formatting.shorten(f"started {name}", WIDTH))

    def ended(self, name: str, record: RunRecord, seconds: float) -> None:
        """Show how a run's process has ended."""
        self._done += 1
        self._last = self._clock()
        number = self._total - self._todo + self._done
        took = formatting.format_seconds(seconds)
        self.note(f"[{number}/{self._total}] {name}: {record.status} after {took}")
        if record.error:
            self.note(f"    {record.error}")

    def running(self, progress: Mapping[str, str], waiting: int) -> None:
        """Draw the runs under way."""
        if self._live is not None:
            self._live.update(self.panel(progress, waiting))

    def panel(self, progress: Mapping[str, str], waiting: int) -> Group:
        """Return a line on the whole study, then a line per run under way."""
        width = min(WIDTH, self._console.width)
        head = f"{len(progress)} running, {waiting} waiting  {self._eta}"
        lines = [formatting.shorten(head, width)]
        for name, line in progress.items():
            label = formatting.shorten(name, width // 2)
            lines.append(formatting.shorten(f"  {label}  {line}", width))
        return Group(*(Text(line, no_wrap=True, overflow="crop") for line in lines))

    def close(self) -> None:
        """Stop drawing."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def finish(self, table: Table | None, texts: Sequence[str], outputs: Sequence[Path]) -> None:
        """Show a table, sentences such as why a run failed, and the files worth opening."""
        self.close()
        if table is not None and self._mode != "none":
            self._console.print(table, width=min(WIDTH, self._console.width))
        for text in (*texts, *map(formatting.display_path, outputs)):
            self.note(text)

    def note(self, text: str) -> None:
        """Print a line without markup, colours or wrapping."""
        if self._mode != "none":
            self._console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)

    @property
    def _eta(self) -> str:
        """The time for the remaining runs at the pace of those that have ended."""
        if not self._done:
            return "ETA -"
        left = (self._last - self._began) / self._done * (self._todo - self._done)
        return f"ETA {formatting.format_seconds(max(left - (self._clock() - self._last), 0.0))}"


def terminal_table(comparison: ComparisonTable) -> Table | None:
    """Return a comparison with as many metrics as fit into 80 columns; table.md has all of them.

    None if no run has completed.
    """
    if not any(row.completed for row in comparison.rows):
        return None
    label = min(_LABEL, max(len(row.label) for row in comparison.rows))
    count = max(len("runs"), *(len(row.count) for row in comparison.rows))
    room = (WIDTH - label - count - 5) // _CELL
    chosen = set(foremost(comparison)[:room])
    places = [place for place, name in enumerate(comparison.columns) if name in chosen]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    if more := len(comparison.columns) - len(places):
        table.caption = f"{more} more columns: table.md"
        table.caption_justify = "left"
        table.min_width = len(table.caption)
    table.add_column("", max_width=_LABEL, overflow="fold")
    table.add_column("runs", justify="right", no_wrap=True)
    for place in places:
        name = comparison.columns[place]
        table.add_column(name.replace("/", "\n", 1), justify="right", no_wrap=True)
    for row in comparison.rows:
        texts = comparison.texts(row)
        table.add_row(Text(row.label), row.count, *(texts[place] for place in places))
    return table


def trials_table(found: TuneTable) -> Table:
    """Return the table of a search: each trial's point, rounds, end and objective.

    The chosen trial is marked.
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
