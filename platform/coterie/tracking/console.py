"""The terminal view of a run: a live panel, a line per round, or nothing."""

import logging
import os
import textwrap
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.logging import RichHandler
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.text import Text

from coterie.config.record_names import Status
from coterie.contract.observer import PhaseRecord, Scores
from coterie.contract.phase import Phase
from coterie.errors import on_one_line
from coterie.tracking import formatting
from coterie.tracking.notebook import NotebookPanel
from coterie.tracking.progress import Progress, shown_scores
from coterie.tracking.terminal import Terminal

_PANEL_WIDTH = 80
_LINE_WIDTH = 100
_QUIET_S = 2.0
_SILENT_S = 60.0
"""Seconds without a line after which one says that the phase is under way."""
_LISTED_FAILURES = 5


class ConsoleView:
    """The terminal view of a run, an `Observer`.

    Mode `live` draws a panel of six lines and at most 80 columns in place; evaluations, failures
    and notes scroll above it. Mode `lines` prints plain text, at most 100 characters for a finished
    round. It leaves out rounds that follow within two seconds, except the last one, the one before
    a note, and those with a new stage, an evaluation or a failure. In a phase of minutes it prints
    one line each minute.

    Args:
        mode: `auto` is live on a terminal and in a notebook; elsewhere, in CI and in jobs, lines.
        clock: A monotonic clock in seconds, for rates and the ETA.

    Attributes:
        mode: `live`, `lines` or `none`.
    """

    def __init__(
        self,
        mode: Literal["auto", "live", "lines", "none"] = "auto",
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console = console or Terminal()
        self.mode = _resolve(self.console) if mode == "auto" else mode
        live = self.mode == "live"
        self._width = min(_LINE_WIDTH, self.console.width) if live else _LINE_WIDTH
        self._clock = clock
        self._progress = Progress(clock)
        self.title = ""
        self._live: Live | NotebookPanel | None = None
        self._last_line: tuple[float, str] | None = None
        self._left_out = ""
        self._told: set[str] = set()
        self._handlers: list[tuple[RichHandler, Console]] = []
        self._printed = self._since = clock()
        self._over, self._in_phase = threading.Event(), False

    def start(self, title: str, details: Mapping[str, str]) -> None:
        """Show what runs, and start the panel."""
        self.title = title
        words = [title, *(f"{name} {value}" for name, value in details.items())]
        for line in textwrap.wrap(" | ".join(words), min(self._width, self.console.width)):
            self._print(line)
        if self.mode == "live":
            if self.console.is_jupyter:
                self._live = NotebookPanel(self.panel, self._clock)
            else:
                self._live = Live(get_renderable=self.panel, console=self.console, transient=True)
                self._take_warnings()
            self._live.start()
        elif self.mode == "lines":
            threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        """Say what is under way where nothing has been printed for a minute."""
        while not self._over.wait(_SILENT_S / 12):
            progress = self._progress
            if progress.phase is None or self._clock() - self._printed < _SILENT_S:
                continue
            spent = formatting.format_seconds(self._clock() - self._since)
            stage = formatting.shorten(progress.phase.stage, 24)
            what = progress.clients if self._in_phase else "trained, what follows"
            line = f"{progress.round} {stage}  {what}  under way for {spent}"
            self._print(formatting.shorten(line, self._width))

    def _take_warnings(self) -> None:
        """Have warnings for the terminal printed above the panel, which would draw over them."""
        for handler in logging.getLogger().handlers:
            if isinstance(handler, RichHandler) and handler.console.is_terminal:
                self._handlers.append((handler, handler.console))
                handler.console = self.console

    def table(self, table: object) -> None:
        """Show a table above the panel."""
        if self.mode != "none":
            self.console.print(table)

    def phase_started(self, phase: Phase, cohort_size: int, total_rounds: int | None) -> None:
        """Show the phase in the panel."""
        if self._progress.phase is None or self._progress.phase.round != phase.round:
            self._told = set()
        self._progress.begin(phase, cohort_size, total_rounds)
        self._since, self._in_phase = self._clock(), True
        self._refresh()

    def client_done(self, client: int, metrics: Mapping[str, float]) -> None:
        """Count a client once, although its task runs again when an actor is lost."""
        self._progress.done.add(client)
        self._refresh()

    def client_failed(self, client: int, message: str) -> None:
        """Show a failure, but only the first few kinds of a round, whose line counts all."""
        self._progress.failed_tasks += 1
        if message in self._told:
            return
        self._told.add(message)
        if len(self._told) <= _LISTED_FAILURES:
            line = f"client {client} failed: {' '.join(message.split())}"
            self._print(formatting.shorten(line, self._width))
        elif len(self._told) == _LISTED_FAILURES + 1:
            self._print("further failures of this round are counted, not listed")

    def phase_finished(self, record: PhaseRecord) -> None:
        """Update the panel, or print the round's line."""
        progress = self._progress
        progress.end(record)
        self._since, self._in_phase = self._clock(), False
        if not record.phase.ends_round and record.evaluation is None:
            return
        event = bool(record.evaluation or progress.failures)
        self._left_out = ""
        if event or (self.mode == "lines" and self._line_is_due(record.phase)):
            self._last_line = (self._clock(), record.phase.stage)
            self._print(self._line(record))
        elif self.mode == "lines":
            self._left_out = self._line(record)

    def evaluated(self, round_: int, scores: Mapping[str, float], *, final: bool) -> None:
        """Show nothing, since the round's line and the final table have the scores."""

    def note(self, text: str) -> None:
        """Print a line."""
        self._end_rounds()
        self._print(" ".join(text.split()))

    def finish(
        self,
        status: Status,
        *,
        error: str | None = None,
        scores: Scores | None = None,
        outputs: Sequence[Path] = (),
    ) -> None:
        """Stop the panel; show the status, the final scores and the files worth opening."""
        self._over.set()
        if self._live is not None:
            self._live.stop()
        for handler, own in self._handlers:
            handler.console = own
        self._end_rounds()
        self._print(f"{status}: {error}" if error else status)
        if scores and self.mode != "none":
            self.console.print(formatting.scores_table(scores, self.console.width))
        for path in outputs:
            self._print(formatting.display_path(path))

    def panel(self) -> RenderableType:
        """Return the current live panel."""
        progress = self._progress
        phase, total = progress.phase, progress.total_rounds
        place = f"{phase.stage} / {phase.name}  " if phase else ""
        scores = "  ".join(formatting.score_texts(progress.evaluation))
        clients = f"{progress.clients} failed {progress.failed_tasks}"
        lines = Group(
            formatting.one_line(f"{place}{progress.round}  {progress.eta}"),
            Padding(ProgressBar(total or 1, progress.rounds_done if total else 0), 0),
            formatting.one_line(f"{progress.loss}  {scores}"),
            formatting.one_line(f"{clients}  {progress.rate}  {progress.traffic}"),
        )
        width = min(_PANEL_WIDTH, self.console.width)
        return Panel(lines, title=Text(self.title), width=width)

    def _refresh(self) -> None:
        """Draw a notebook's panel again; a terminal's is drawn by its own thread."""
        if isinstance(self._live, NotebookPanel):
            self._live.refresh()

    def _line_is_due(self, phase: Phase) -> bool:
        """Return whether to print a round: in a new stage, at the end, or after a pause."""
        if self._last_line is None or phase.round == self._progress.total_rounds:
            return True
        when, stage = self._last_line
        return stage != phase.stage or self._clock() - when >= _QUIET_S

    def _end_rounds(self) -> None:
        """Print the last round if it was left out; a run may end before its last one."""
        if self._left_out:
            self._print(self._left_out)
            self._left_out = ""

    def _line(self, record: PhaseRecord) -> str:
        """Return a round in at most 100 characters, without less important parts if need be."""
        progress = self._progress
        parts = [f"{progress.round} {formatting.shorten(record.phase.stage, 24)}"]
        parts += [f"FAILED TASKS {progress.failures}"] if progress.failures else []
        parts += [progress.loss, *formatting.score_texts(shown_scores(record))]
        return formatting.fit(
            [*parts, progress.clients, progress.eta, progress.traffic], self._width
        )

    def _print(self, text: str) -> None:
        """Print a line without markup, colours or wrapping."""
        self._printed = self._clock()
        if self.mode != "none":
            text = on_one_line(text)
            self.console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)


def _resolve(console: Console) -> Literal["live", "lines"]:
    """Choose the live view for an interactive terminal that can redraw, and for notebooks."""
    interactive = console.is_jupyter or (console.is_terminal and not console.is_dumb_terminal)
    return "live" if interactive and not os.environ.get("CI") else "lines"
