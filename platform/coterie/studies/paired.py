"""Differences between variants over the seeds that both have, with intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np
from scipy.stats import t

from coterie.evaluation.canvas import blank, drawing, label, save
from coterie.studies.comparison_table import ComparisonTable, foremost
from coterie.tracking.csv_text import csv_text
from coterie.tracking.run_records import RunRecord

_LEVEL = 0.95
_PANELS = 4
INTERVAL = "95 % t-interval of the paired difference over seeds"
_APART = "red: told apart, p < 0.05 after Holm's correction over a metric's pairs"


@dataclass(frozen=True)
class Difference:
    """A metric of one variant less that of another, over the seeds that both have.

    Attributes:
        seeds: The number of seeds n that both completed.
        mean: The mean of the differences.
        half: Half the width of the interval, t(0.975, n - 1) · s / √n; None for a single seed.
        p: The p-value of the two-sided paired t-test, corrected for the number of the metric's
            pairs by Holm (1979); None for a single seed, and where all seeds differ by the same,
            which no test can judge.
    """

    metric: str
    first: str
    second: str
    seeds: int
    mean: float
    half: float | None
    p: float | None

    @property
    def told_apart(self) -> bool:
        """Whether the corrected test rejects that the variants are alike."""
        return self.p is not None and self.p < 1 - _LEVEL


def paired_differences(table: ComparisonTable) -> list[Difference]:
    """Return the differences of every pair of variants, for each final metric of the table.

    Seeds are paired because runs with one seed share the split over clients and, where the networks
    are alike, the first weights.
    """
    labels = [row.label for row in table.rows]
    found = []
    for metric in foremost(table):
        values = {label: _by_seed(table.records, label, metric) for label in labels}
        own = []
        for first, second in combinations(labels, 2):
            seeds = sorted(values[first].keys() & values[second].keys())
            if seeds:
                apart = [values[first][seed] - values[second][seed] for seed in seeds]
                own.append(_difference(metric, first, second, apart))
        found += _corrected(own)
    return found


def differences_csv(found: Sequence[Difference]) -> str:
    """Return the differences as CSV in full precision."""
    head = ["metric", "first", "second", "seeds", "first less second", "low", "high", "p (Holm)"]
    lines: list[Sequence[object]] = [head]
    for one in found:
        edges = (None, None) if one.half is None else (one.mean - one.half, one.mean + one.half)
        lines.append([one.metric, one.first, one.second, one.seeds, one.mean, *edges, one.p])
    return csv_text(lines)


@drawing()
def differences_figure(found: Sequence[Difference], path: Path, about: str = "") -> Path | None:
    """Draw the differences of up to four metrics; None if no pair has two seeds in common."""
    found = [one for one in found if one.half is not None]
    told = {one.metric for one in found if one.mean or one.half}  # others are of the data alone
    found = [one for one in found if one.metric in told or not told]
    metrics = list(dict.fromkeys(one.metric for one in found))[:_PANELS]
    if not metrics:
        return None
    panels = [[one for one in found if one.metric == metric] for metric in metrics]
    heights = [0.7 + 0.28 * len(panel) for panel in panels]
    figure = blank(8.0, 0.8 + sum(heights))
    grid = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, metric, panel in zip(grid, metrics, panels, strict=True):
        for place, one in enumerate(panel):
            colour = "#bd1f01" if one.told_apart else "#717581"
            axes.errorbar(one.mean, place, xerr=one.half, fmt="o", color=colour, capsize=3)
        axes.axvline(0, color="black", lw=0.8)
        names = [f"{label(one.first)} – {label(one.second)}" for one in panel]
        axes.set_yticks(range(len(panel)), names)
        axes.set_ylim(len(panel) - 0.5, -0.5)
        axes.set_xlabel(metric)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{INTERVAL}\n{_APART}", fontsize=9)
    return save(figure, path, about)


def _by_seed(records: Sequence[RunRecord], label: str, metric: str) -> dict[int, float]:
    own = [record for record in records if record.completed and record.label == label]
    return {record.seed: record.numbers[metric] for record in own if metric in record.numbers}


def _difference(metric: str, first: str, second: str, apart: Sequence[float]) -> Difference:
    seeds, mean, half, p = len(apart), float(np.mean(apart)), None, None
    if seeds > 1:
        error = float(np.std(apart, ddof=1)) / math.sqrt(seeds)
        half = float(t.ppf((1 + _LEVEL) / 2, seeds - 1)) * error
        p = float(2 * t.sf(abs(mean) / error, seeds - 1)) if error else None
    return Difference(metric, first, second, seeds, mean, half, p)


def _corrected(found: Sequence[Difference]) -> list[Difference]:
    """Correct the p-values of one metric's pairs by Holm's step-down procedure."""
    tested = [one for one in found if one.p is not None]
    ranked, least, corrected = (
        sorted(tested, key=lambda one: one.p or 0.0),
        0.0,
        dict[tuple[str, str], float](),
    )
    for place, one in enumerate(ranked):
        least = max(least, min(1.0, (len(ranked) - place) * (one.p or 0.0)))
        corrected[one.first, one.second] = least
    return [replace(one, p=corrected.get((one.first, one.second))) for one in found]
