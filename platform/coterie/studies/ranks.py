"""Mean ranks of methods over data sets, with Nemenyi's critical difference (Demšar, JMLR 2006)."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata, studentized_range

from coterie.evaluation.canvas import blank, drawing, label, save
from coterie.studies.comparison_table import LOWER, ComparisonTable, foremost

_LEVEL = 0.95
_LEAST = 3
"""The fewest data sets, and methods, for which ranks are informative."""
_DATA = re.compile(r" data(\.path)?=(\S+)")


@dataclass(frozen=True)
class Ranks:
    """Mean ranks over data sets.

    Attributes:
        mean: Method to its mean rank, 1 the best, ties shared.
        critical: The difference of mean ranks from which two methods differ at 95 % by Nemenyi's
            test: q √(k(k + 1) / 6N) for k methods and N data sets.
    """

    metric: str
    mean: Mapping[str, float]
    critical: float
    sets: int


def mean_ranks(table: ComparisonTable) -> Ranks | None:
    """Rank the methods on each data set by their first metric, the mean over seeds.

    Variants that differ in `data=` alone are one method on several data sets. None unless three
    methods or more have three data sets or more in common.
    """
    metrics = foremost(table)
    if not metrics:
        return None
    place = table.columns.index(metrics[0])
    scores: dict[str, dict[str, float]] = {}
    for row in table.rows:
        found, cell = _DATA.search(row.label), row.cells[place]
        if found is not None and cell is not None:
            method = row.label[: found.start()] + row.label[found.end() :]
            scores.setdefault(method, {})[found[2]] = cell.mean
    sets = sorted(set.intersection(*map(set, scores.values()))) if scores else []
    if len(scores) < _LEAST or len(sets) < _LEAST:
        return None
    lower = metrics[0].rpartition("/")[2] in LOWER
    matrix = np.array([[values[name] for name in sets] for values in scores.values()])
    ranks: NDArray[np.float64] = rankdata(matrix if lower else -matrix, axis=0)
    means = dict(zip(scores, ranks.mean(axis=1).tolist(), strict=True))
    return Ranks(metrics[0], means, critical_difference(len(scores), len(sets)), len(sets))


def critical_difference(methods: int, sets: int) -> float:
    """Return Nemenyi's critical difference of mean ranks at 95 % (Demšar 2006, section 3.2.2)."""
    q = float(studentized_range.ppf(_LEVEL, methods, np.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * sets))


def cliques(ranks: Ranks) -> list[tuple[float, float]]:
    """Return the largest ranges of mean ranks in which no two methods differ."""
    ordered = sorted(ranks.mean.values())
    found: list[tuple[float, float]] = []
    for number, first in enumerate(ordered):
        near = [rank for rank in ordered[number:] if rank - first < ranks.critical]
        if len(near) > 1 and (not found or near[-1] > found[-1][1]):
            found.append((first, near[-1]))
    return found


@drawing()
def ranks_figure(ranks: Ranks, path: Path, about: str = "") -> Path:
    """Draw the critical-difference diagram: methods by mean rank, and bars over groups of ties."""
    ordered = sorted(ranks.mean.items(), key=lambda item: item[1])
    bars = cliques(ranks)
    figure = blank(8.0, 1.4 + 0.26 * len(ordered) + 0.14 * len(bars))
    axes = figure.subplots()
    for place, (method, rank) in enumerate(ordered):
        axes.plot([rank, rank, len(ordered) + 0.1], [0, -1 - place, -1 - place], "k-", lw=0.8)
        text = f"{label(method)}  {rank:.2f}"
        axes.text(len(ordered) + 0.15, -1 - place, text, va="center", fontsize=9)
    for place, (low, high) in enumerate(bars):
        axes.plot([low - 0.03, high + 0.03], [-0.25 - 0.2 * place] * 2, color="#bd1f01", lw=3)
    axes.set_xlim(0.9, len(ordered) + 0.1)
    axes.set_ylim(-len(ordered) - 0.6, 0)
    axes.xaxis.tick_top()
    axes.set_yticks([])
    axes.spines[["left", "right", "bottom"]].set_visible(False)
    figure.suptitle(  # in two lines: long names leave the axes little room
        f"mean rank by {ranks.metric} over {ranks.sets} data sets\n"
        f"a bar joins methods closer than {ranks.critical:.2f} (Nemenyi, 95 %)",
        fontsize=9,
    )
    return save(figure, path, about)
