"""The claims of the papers, and which of them hold in the measured results."""

import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from coterie.studies.measurement import (
    Measured,
    Measurement,
    Sign,
    number_text,
    printed_text,
    sign,
    two_errors,
)
from coterie.studies.paper_study import Cell, Claim

_MISSING = "Not decided, since a row was not run, or did not reach the value that it is asked for:"
_WOULD = (
    "What would decide the undecided claims. Where the difference counts, these are more seeds at "
    "the spread so far; where it is too small to count, only a larger scale tells more. Hours are "
    "those that the two cells took here."
)
_MOST_SEEDS = 30
"""A claim that needs more seeds than these is undecided at its scale."""


@dataclass(frozen=True)
class _Measured:
    """A claim, and the numbers of its two cells in a study's results at one scale."""

    claim: Claim
    part: Measurement
    metric: str
    more: Measured
    less: Measured

    @property
    def cells(self) -> tuple[Cell, Cell]:
        return Cell(*self.claim.more), Cell(*self.claim.less)

    @property
    def sign(self) -> Sign:
        return sign(self.more, self.less, 1.0, self.part.noise)

    @property
    def line(self) -> list[str]:
        """The claim's line of the table."""
        scale, study = self.part.study.scales[self.part.scale], self.part.study
        data = {scale.instead.get(cell.column, "") for cell in self.cells} - {""}
        where = f"{', '.join(sorted(data))}: " if data else ""
        here = f"{where}{self.metric} {number_text(self.more)} against {number_text(self.less)}"
        printed = [study.number(self.metric, cell.row, cell.column) for cell in self.cells]
        paper = "in words" if None in printed else " against ".join(map(printed_text, printed))
        return [self.claim.says, paper, here, self.sign, _link(self.part)]

    @property
    def need(self) -> list[str]:
        """The claim's line of what would decide it: difference, what counts, runs and hours."""
        difference = abs(self.more.spread.mean - self.less.spread.mean)
        counts, errors = self.part.noise, two_errors(self.more, self.less)
        seeds = min(self.more.seeds, self.less.seeds)
        needed = seeds
        if difference > counts:
            needed = math.ceil(seeds * (errors / difference) ** 2)
        if seeds < needed <= _MOST_SEEDS:
            runs = needed - seeds
            would = f"{runs} more seed{'s' * (runs > 1)}{self._hours(runs)}"
        else:
            paper = self.part.study.scales["paper"]
            would = f"the scale paper: {paper.takes} for the whole study"
        numbers = [f"{number:.3g}" for number in (difference, max(counts, errors))]
        return [self.claim.says, *numbers, str(seeds), would]

    def _hours(self, seeds: int) -> str:
        """Return the hours of this many seeds of both cells: ", 1.2 hours"; "" if unknown."""
        results = [self.part.results_of(cell) for cell in self.cells]
        seconds = [[r.numbers.get("seconds/total", math.nan) for r in own] for own in results]
        hours = seeds * sum(map(statistics.fmean, seconds)) / 3600
        return "" if math.isnan(hours) else f", {hours:.1f} hours"


def claims_table(found: Iterable[list[Measurement]]) -> str:
    """Return how many claims hold, a line for each measured one, and what would decide the others.

    A claim counts at the most telling scale at which both of its cells were measured.
    """
    measured, others = list[_Measured](), defaultdict[str, list[str]](list)
    for parts in found:
        for claim in parts[0].study.claims:
            one = next(filter(None, (_measured(part, claim) for part in parts)), None)
            if one:
                measured.append(one)
            else:
                others[_link(parts[0])].append(claim.says)
    counts = Counter(one.sign for one in measured)
    head = (
        f"Claims measured: {len(measured)}. Yes: {counts['yes']}, no: {counts['no']}, "
        f"undecided: {counts['undecided']}."
    )
    lines = [one.line for one in measured]
    blocks = [head, _table(("claim", "paper", "here", "holds?", "details"), lines)]
    if needs := [one.need for one in measured if one.sign == "undecided"]:
        titles = ("claim", "difference", "counts above", "seeds", "would take")
        blocks += [_WOULD, _table(titles, needs)]
    if others:
        rest = [f"- {link}: {'; '.join(dict.fromkeys(says))}." for link, says in others.items()]
        blocks += [_MISSING, "\n".join(rest)]
    return "\n\n".join(blocks)


def _measured(part: Measurement, claim: Claim) -> _Measured | None:
    """Return a claim with its numbers; None if one of its cells was not measured."""
    metric = claim.metric or next(iter(part.study.metrics))
    more, less = (part.number(metric, Cell(*cell)) for cell in (claim.more, claim.less))
    return _Measured(claim, part, metric, more, less) if more and less else None


def _table(titles: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (titles, ["---"] * len(titles), *lines))


def _link(part: Measurement) -> str:
    """Return the link to the study's tables."""
    study = part.study
    slug = re.sub(r"[^\w -]", "", study.paper.lower()).replace(" ", "-")
    return f"[{study.paper}](results/{study.page}.md#{slug})"
