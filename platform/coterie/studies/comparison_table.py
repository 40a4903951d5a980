"""A table of runs: mean ± standard deviation over seeds, as Markdown and CSV."""

import html
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from coterie.errors import printable
from coterie.tracking.csv_text import csv_text
from coterie.tracking.formatting import format_bytes
from coterie.tracking.run_records import RunRecord

LOWER = frozenset({"loss", "mixing"})
"""Last parts of the metrics of which less is better."""


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation of a number over seeds.

    Attributes:
        deviation: The sample standard deviation (n - 1); None for a single run.
        count: The runs that have the number.
    """

    mean: float
    deviation: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        """Return the spread of these values, None without any."""
        if not values:
            return None
        deviation = statistics.stdev(values) if values[1:] else None
        return cls(statistics.fmean(values), deviation, len(values))


@dataclass(frozen=True)
class ComparisonRow:
    """A row of the table: one variant over its seeds.

    Attributes:
        cells: A spread per column; None if no completed run has the number.
    """

    label: str
    completed: int
    runs: int
    cells: tuple[Spread | None, ...]

    @property
    def count(self) -> str:
        """The number of runs behind the row: "3", or "2 of 3" if one is missing."""
        return str(self.runs) if self.completed == self.runs else f"{self.completed} of {self.runs}"


@dataclass(frozen=True)
class ComparisonTable:
    """A table of the completed runs.

    Attributes:
        columns: Names as in `RunRecord.numbers`.
    """

    columns: tuple[str, ...]
    rows: tuple[ComparisonRow, ...]
    records: tuple[RunRecord, ...]

    @classmethod
    def of(cls, records: Iterable[RunRecord], columns: Sequence[str] = ()) -> "ComparisonTable":
        """Tabulate runs.

        Args:
            records: The runs; those of one label have different seeds.
            columns: The numbers to tabulate; by default every final metric, and bytes and modelled
                seconds if any run used them.
        """
        records = tuple(records)
        done = [record for record in records if record.completed]
        names = tuple(columns) or _default_columns(done)
        rows = []
        for label in dict.fromkeys(record.label for record in records):
            own = [record for record in done if record.label == label]
            cells = tuple(
                Spread.of([record.numbers[name] for record in own if name in record.numbers])
                for name in names
            )
            runs = sum(record.label == label for record in records)
            rows.append(ComparisonRow(label, len(own), runs, cells))
        return cls(names, tuple(rows), records)

    @property
    def problems(self) -> list[str]:
        """A sentence for each run that did not complete."""
        return [
            f"{record.label}, seed {record.seed}: {record.status}"
            + (f": {record.error}" if record.error else ".")
            for record in self.records
            if not record.completed
        ]

    def markdown(self) -> str:
        """Return the table in Markdown, and below it the runs that did not complete."""
        head = ["experiment", "runs", *self.columns]
        lines = [head, ["---"] * len(head)]
        lines += [[row.label, row.count, *self.texts(row)] for row in self.rows]
        table = "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)
        problems = "".join(f"- {_escape(problem)}\n" for problem in self.problems)
        return f"{table}\n\n{problems}" if problems else f"{table}\n"

    def texts(self, row: ComparisonRow) -> list[str]:
        """Return a row's cells as text.

        Where some of its runs lack the number, with how many have it.
        """
        texts = []
        for name, cell in zip(self.columns, row.cells, strict=True):
            few = cell is not None and cell.count < row.completed
            of = f" ({cell.count} of {row.completed})" if cell and few else ""
            texts.append(cell_text(name, cell) + of)
        return texts

    @property
    def head(self) -> list[str]:
        """The header of `lines`."""
        parts = [f"{name} {part}" for name in self.columns for part in ("mean", "std", "runs")]
        return ["experiment", "completed", "runs", *parts]

    @property
    def lines(self) -> list[list[str | int | float | None]]:
        """Each row's label and counts, then mean and deviation per column."""
        lines: list[list[str | int | float | None]] = []
        for row in self.rows:
            lines.append([row.label, row.completed, row.runs])
            for cell in row.cells:
                lines[-1] += [cell.mean, cell.deviation, cell.count] if cell else [None, None, 0]
        return lines

    def csv(self) -> str:
        """Return the table as CSV in full precision."""
        return csv_text([self.head, *self.lines])

    def runs_csv(self) -> str:
        """Return every run with every number of its summary.json, as CSV in full precision."""
        names = list(dict.fromkeys(name for record in self.records for name in record.numbers))
        head = ["experiment", "seed", "status", "error", *names]
        lines = [
            [run.label, run.seed, run.status, run.error, *map(run.numbers.get, names)]
            for run in self.records
        ]
        return csv_text([head, *lines])


def cell_text(name: str, cell: Spread | None) -> str:
    """Return a cell as text: `0.929 ± 0.012`, bytes with a unit, a dash for None."""
    if cell is None:
        return "–"
    sizes = name.startswith("bytes/")
    show, spread = format_bytes if sizes else _short, cell.deviation
    if spread is None or (sizes and spread == 0):
        return show(cell.mean)
    return f"{show(cell.mean)} ± {show(spread)}"


def foremost(comparison: ComparisonTable) -> list[str]:
    """Return the columns that are final metrics, in the order of their weight.

    The first of each group ("clustering", "linear") comes before the second of each, and among
    these those that most rows have. Before all others come columns of which every row has one.
    """
    missing = {
        name: sum(row.cells[place] is None for row in comparison.rows)
        for place, name in enumerate(comparison.columns)
    }
    used = {name for record in comparison.records for name in record.accounts}
    scores = alternating(name for name in comparison.columns if name not in used)
    scores = list(scores)
    ranks = {name: _rank(name, scores) for name in scores}
    order = sorted(scores, key=lambda name: (ranks[name], missing[name]))
    first: list[str] = []
    for row in comparison.rows:
        cells = dict(zip(comparison.columns, row.cells, strict=True))
        own = [name for name in order if cells[name] is not None]
        first += own[:1] if not set(first) & set(own) else []
    return [*first, *(name for name in order if name not in first)]


def _rank(name: str, names: Sequence[str]) -> int:
    """Return a name's place in its group."""
    group = name.partition("/")[0]
    return [other for other in names if other.partition("/")[0] == group].index(name)


def alternating(names: Iterable[str]) -> list[str]:
    """Return each group's first name (a group is what precedes the slash), then each second one."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.partition("/")[0], []).append(name)
    return [name for rank in zip_longest(*groups.values()) for name in rank if name is not None]


def _default_columns(done: Sequence[RunRecord]) -> tuple[str, ...]:
    scores = dict.fromkeys(name for record in done for name in record.scores)
    used = dict.fromkeys(name for record in done for name in record.accounts)
    return (*scores, *(name for name in used if any(record.numbers.get(name) for record in done)))


def _short(number: float) -> str:
    """Format with three decimals, or five digits from 100 on."""
    return f"{number:.3f}" if abs(number) < 100 else f"{number:.5g}"


def _cell(text: str) -> str:
    return _escape(text).replace("|", "\\|")


def _escape(text: str) -> str:
    """Return one line that Markdown shows literally, without links, pictures, code or HTML."""
    shown = html.escape(printable(" ".join(text.split())), quote=False)
    return re.sub(r"[\\`\[\]]", r"\\\g<0>", shown)
