"""Differences between variants over the seeds that both have, with intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from scipy.stats import t

from coterie.evaluation.canvas import blank, drawn, label, save
from coterie.studies.comparison_table import ComparisonTable, foremost
from coterie.tracking.csv_text import csv_text
from coterie.tracking.run_records import RunRecord

_LEVEL = 0.95
_PANELS = 4
INTERVAL = "95 % t-interval of the paired difference over seeds"


@dataclass(frozen=True)
class Difference:
    """A metric of one variant less that of another, over the seeds that both have.

    Attributes:
        seeds: The number of seeds n that both completed.
        mean: The mean of the differences.
        half: Half the width of the interval, t(0.975, n - 1) · s / √n; None for a single seed.
    """

    metric: str
    first: str
    second: str
    seeds: int
    mean: float
    half: float | None

    @property
    def told_apart(self) -> bool:
        """Whether zero is outside the interval."""
        return self.half is not None and abs(self.mean) > self.half


def paired_differences(table: ComparisonTable) -> list[Difference]:
    """Return the differences of every pair of variants, for each final metric of the table.

    Seeds are paired because runs with one seed share the split over clients and, where the networks
    are alike, the first weights.
    """
    labels = [row.label for row in table.rows]
    found = []
    for metric in foremost(table):
        values = {label: _by_seed(table.records, label, metric) for label in labels}
        for first, second in combinations(labels, 2):
            seeds = sorted(values[first].keys() & values[second].keys())
            if seeds:
                apart = [values[first][seed] - values[second][seed] for seed in seeds]
                found.append(_difference(metric, first, second, apart))
    return found


def differences_csv(found: Sequence[Difference]) -> str:
    """Return the differences as CSV in full precision."""
    head = ["metric", "first", "second", "seeds", "first less second", "low", "high"]
    lines: list[Sequence[object]] = [head]
    for one in found:
        edges = (None, None) if one.half is None else (one.mean - one.half, one.mean + one.half)
        lines.append([one.metric, one.first, one.second, one.seeds, one.mean, *edges])
    return csv_text(lines)


@drawn
def differences_figure(found: Sequence[Difference], path: Path, about: str = "") -> Path | None:
    """Draw the differences of up to four metrics; None if no pair has two seeds in common."""
    found = [one for one in found if one.half is not None]
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
    figure.suptitle(f"{INTERVAL}; red: without zero", fontsize=9)
    return save(figure, path, about)


def _by_seed(records: Sequence[RunRecord], label: str, metric: str) -> dict[int, float]:
    own = [record for record in records if record.completed and record.label == label]
    return {record.seed: record.numbers[metric] for record in own if metric in record.numbers}


def _difference(metric: str, first: str, second: str, apart: Sequence[float]) -> Difference:
    seeds, half = len(apart), None
    if seeds > 1:
        quantile = float(t.ppf((1 + _LEVEL) / 2, seeds - 1))
        half = quantile * float(np.std(apart, ddof=1)) / math.sqrt(seeds)
    return Difference(metric, first, second, seeds, float(np.mean(apart)), half)
