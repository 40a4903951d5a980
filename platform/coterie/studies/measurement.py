"""A study's measured numbers at one scale, beside those that the paper prints."""

import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from coterie.studies.comparison_table import Spread
from coterie.studies.paper_study import Cell, PaperStudy, ScaleName, read_study, studies
from coterie.studies.results_file import Result, read_results

_SHOWN: tuple[ScaleName, ...] = ("paper", "cpu")
"""Scales whose results are shown, the most informative first."""
_FEWEST = 3
"""The fewest runs for a correlation."""


Sign = Literal["yes", "no", "undecided"]


@dataclass(frozen=True)
class Measured:
    """A cell's number over its seeds."""

    spread: Spread
    seeds: int


def sign(first: Measured, second: Measured, expected: float, noise: float) -> Sign:
    """Return whether the difference of two cells has the paper's sign.

    It is undecided up to two standard errors of the difference where both have several seeds, and
    up to `noise` in any case.

    Args:
        first: The cell that is compared.
        second: The cell that it is compared with.
        expected: First less second in the paper, or only a number of that sign; not 0.
        noise: The least difference that counts.
    """
    difference = first.spread.mean - second.spread.mean
    if abs(difference) <= max(noise, two_errors(first, second)):
        return "undecided"
    return "yes" if difference * expected > 0 else "no"


def two_errors(first: Measured, second: Measured) -> float:
    """Return two standard errors of the cells' difference; 0 unless both have several seeds."""
    cells = (first, second)
    if any(cell.spread.deviation is None for cell in cells):
        return 0.0
    return 2 * math.hypot(
        *((cell.spread.deviation or 0.0) / math.sqrt(cell.seeds) for cell in cells)
    )


@dataclass(frozen=True)
class Measurement:
    """A study's results at one scale."""

    name: str
    study: PaperStudy
    scale: ScaleName
    results: tuple[Result, ...]

    @property
    def command(self) -> str:
        """The command that runs the study, with its seeds if they are not the scale's."""
        command = f"coterie study study={self.name} scale={self.scale}"
        if set(self.seeds) in (set(), set(self.study.scales[self.scale].seeds)):
            return command
        return f"{command} seeds=[{','.join(map(str, self.seeds))}]"

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of its results, ascending."""
        return tuple(sorted({result.seed for result in self.results}))

    @property
    def noise(self) -> float:
        """The least difference that counts."""
        return self.study.scales[self.scale].noise

    def number(self, metric: str, cell: Cell) -> Measured | None:
        """Return a cell's number over its seeds; None unless all of them have it.

        A run that does not reach a score has no number of bytes until then: the mean of the others
        would be that of the best.
        """
        with_it, wanted = self.seeds_with(metric, cell)
        spread = Spread.of([r.numbers[self.study.metrics[metric]] for r in with_it])
        seeds = len({result.seed for result in with_it})
        return Measured(spread, seeds) if spread and len(with_it) == wanted else None

    def seeds_with(self, metric: str, cell: Cell) -> tuple[list[Result], int]:
        """Return the results of a cell that have a metric, and the number of all."""
        own = self.results_of(cell)
        return [result for result in own if self.study.metrics[metric] in result.numbers], len(own)

    def results_of(self, cell: Cell) -> list[Result]:
        """Return the results of a cell; if it is a mean, those of its rows.

        None where a row is not measured.
        """
        rows = self.study.means.get(cell.row, (cell.row,))
        found = [r for r in self.results if r.cell.column == cell.column and r.cell.row in rows]
        return found if {result.cell.row for result in found} == set(rows) else []

    def correlation(self) -> tuple[float, int] | None:
        """Return Pearson's r of the study's two metrics, and how many runs; None below three."""
        if self.study.correlation is None:
            return None
        names = [self.study.metrics[title] for title in self.study.correlation.of]
        found = [r.numbers for r in self.results if r.numbers.keys() >= {*names}]
        if len(found) < _FEWEST:
            return None
        x, y = ([numbers[name] for numbers in found] for name in names)
        return statistics.correlation(x, y), len(found)

    def sign(self, metric: str, cell: Cell) -> str:
        """Return if reference and row differ in the paper's direction: a word, or a dash."""
        reference = Cell(self.study.reference, cell.column)
        expected = self._expected(metric, cell)
        here, there = self.number(metric, reference), self.number(metric, cell)
        if cell == reference or here is None or there is None or not expected:
            return "–"
        return sign(here, there, expected, self.noise)

    def _expected(self, metric: str, cell: Cell) -> float | None:
        """Return reference minus row in the paper, or at least a number with that sign.

        None if the paper gives neither.
        """
        own = self.study.number(metric, self.study.reference, cell.column)
        other = self.study.number(metric, cell.row, cell.column)
        if own is not None and other is not None:
            return own - other
        if self.study.leads is None or metric != next(iter(self.study.metrics)):
            return None
        return 1.0 if self.study.leads == "higher" else -1.0


def measurements(docs: Path) -> dict[str, list[Measurement]]:
    """Return the measurements of every study, by name, at the scales that are shown."""
    folder, found = docs / "results" / "data", {}
    for name in studies():
        study = read_study(name)
        found[name] = [
            Measurement(name, study, scale, read_results(folder / f"{name}-{scale}.csv"))
            for scale in _SHOWN
        ]
    return found


def number_text(here: Measured | None) -> str:
    """Return a measured number: `0.929 ± 0.012`, or a dash."""
    if here is None:
        return "–"
    spread = here.spread
    more = "" if spread.deviation is None else f" ± {_short(spread.deviation)}"
    return f"{_short(spread.mean)}{more}"


def printed_text(number: float | None) -> str:
    """Return a number as the paper prints it."""
    return "–" if number is None else f"{number:.4g}"


def _short(number: float) -> str:
    return f"{number:.3f}" if abs(number) < 1000 else f"{number:,.0f}"
