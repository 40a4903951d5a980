"""The figure of a run's curves: each stage's loss on its own axis, the scores below."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.ticker import MaxNLocator

from coterie.errors import DataError
from coterie.evaluation.canvas import COLOURS, MARKERS, Axes, Figure, blank, drawing, label, save

Curve = Sequence[tuple[int, float]]
"""(round, value) pairs, in the order of the rounds."""
Panel = tuple[str, Mapping[str, Curve]]
"""A title and the curves of one axis."""

_COLUMNS = 3
_SCORES = ("acc", "nmi", "ari")
"""Scores in 0 to 1, which share an axis."""
_MOST_OWN = 9


@drawing()
def curves_figure(
    series: Mapping[str, Curve],
    path: Path,
    boundaries: Mapping[str, int] | None = None,
    about: str = "",
) -> Path:
    """Write `draw_curves` as PNG; folders are made as needed.

    Raises:
        DataError: If there is no curve to draw.
    """
    return save(draw_curves(series, boundaries), path, about)


@drawing()
def draw_curves(series: Mapping[str, Curve], boundaries: Mapping[str, int] | None = None) -> Figure:
    """Draw curves against rounds: the losses of each stage on an axis, the scores on another.

    Stages minimise different losses, so each has its own scale; a single one shares its rounds with
    the scores. A series is a loss if the last part of its name is "loss" ("stage/loss"). A series
    that is neither a loss nor a score of clusters or classes has an axis to itself, since its
    scale is unknown; up to nine of them, scores of validation first.

    Args:
        series: Name to (round, value) pairs; values that are not finite leave gaps.
        boundaries: Name of a stage to its first round; lines mark these rounds in the scores.

    Raises:
        DataError: If there is no curve to draw.
    """
    drawn = {name: curve for name, curve in series.items() if curve}
    if not drawn:
        raise DataError(f"{len(series)} series without a point: give at least one (round, value).")
    last = {name: name.rpartition("/")[2] for name in drawn}
    losses = {name: curve for name, curve in drawn.items() if last[name] == "loss"}
    scores = {name: curve for name, curve in drawn.items() if last[name] in _SCORES}
    own = _own(name for name in drawn if name not in losses and name not in scores)
    own = [name for n, name in enumerate(own) if not _repeats(drawn, own[:n], name)][:_MOST_OWN]
    stages = boundaries or {}
    panels = _by_stage(losses, stages)
    shares_rounds = len(panels) == 1 and not own
    panels += [(label(name), {name: drawn[name]}) for name in own]
    columns = max(1, min(_COLUMNS, len(panels)))
    rows = -(-len(panels) // columns)
    figure = blank(8.5, 0.9 + 2.5 * (rows + bool(scores)))
    grid = figure.add_gridspec(rows + bool(scores), columns)
    for number, (title, curves) in enumerate(panels):
        axes = figure.add_subplot(grid[divmod(number, columns)])
        is_loss = not curves.keys().isdisjoint(losses)
        _fill(
            axes,
            curves,
            "loss" if is_loss and number % columns == 0 else "",
            legend=len(curves) > 1,
        )
        axes.set_title(title, fontsize=10)
    if scores:
        shared = figure.axes[0] if shares_rounds else None
        axes = figure.add_subplot(grid[rows, :], sharex=shared)
        _fill(axes, scores, "score", legend=True)
        _mark_stages(axes, stages)
    return figure


def _own(names: Iterable[str]) -> list[str]:
    """Return the names of further series, those of the server's scores first."""
    return sorted(names, key=lambda name: not name.startswith(("val/", "test/", "validation/")))


def _repeats(drawn: Mapping[str, Curve], before: Sequence[str], name: str) -> bool:
    """Return whether a series is another one's mean over an epoch, with the same values."""
    return any(name == f"{one}_epoch" and drawn[name] == drawn[one] for one in before)


def _by_stage(losses: Mapping[str, Curve], stages: Mapping[str, int]) -> list[Panel]:
    """Return a panel for each stage with losses."""
    starts = sorted(stages.items(), key=lambda stage: stage[1]) or [("loss", 0)]
    panels: list[Panel] = []
    for number, (stage, first) in enumerate(starts):
        after = starts[number + 1][1] if number + 1 < len(starts) else None
        cut = {
            name: [point for point in curve if _within(point[0], first, after, number)]
            for name, curve in losses.items()
        }
        own = {name: curve for name, curve in cut.items() if curve}
        if own:
            panels.append((f"loss of {stage}" if stages else stage, own))
    return panels


def _within(round_: int, first: int, after: int | None, number: int) -> bool:
    """Return whether a round is in a stage; the first stage also takes rounds before it."""
    return (number == 0 or round_ >= first) and (after is None or round_ < after)


def _fill(axes: Axes, curves: Mapping[str, Curve], axis: str, *, legend: bool) -> None:
    """Draw lines with about ten markers each."""
    lines = []
    for number, (name, curve) in enumerate(curves.items()):
        rounds, values = (np.array(part, dtype=np.float64) for part in zip(*curve, strict=True))
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        every = max(1, len(rounds) // 10)
        lines += axes.plot(
            rounds,
            values,
            label=name,
            color=colour,
            marker=marker,
            markevery=every,
            markersize=4,
            lw=1.4,
        )
    axes.set_xlabel("round")
    axes.set_ylabel(axis)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if legend:
        names = [label(name) for name in curves]  # given, since matplotlib leaves out "_name"
        axes.legend(
            lines, names, loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=9
        )


def _mark_stages(axes: Axes, stages: Mapping[str, int]) -> None:
    """Write each stage's name above its first round, and draw a line before each but the first."""
    top = axes.get_xaxis_transform()
    left, right = axes.get_xlim()
    begins = sorted(first - 0.5 for first in stages.values())
    if begins[1:] and begins[1] <= left:  # two names would stand on the edge
        left = begins[0]
    axes.set_xlim(left, right)  # a mark does not move the edge that the first name stands on
    for name, first in stages.items():
        if first > min(stages.values()):
            axes.axvline(first - 0.5, color="#444444", linewidth=0.9, linestyle="--", zorder=1)
        place = max(first - 0.5, left)
        axes.text(place, 1.02, name, transform=top, fontsize=9, color="#444444")
