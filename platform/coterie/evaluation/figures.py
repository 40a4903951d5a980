"""Figures of a run as PNG files: confusion matrix, training curves and embedding.

Drawn through matplotlib's objects without pyplot, so they need no display and leave no
state behind. Colours are told apart under the common forms of colour blindness, and classes and
clusters are also named in place.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from coterie.clustering.contingency import Table
from coterie.errors import DataError
from coterie.evaluation.canvas import COLOURS, MARKERS, blank, save
from coterie.evaluation.clustering_metrics import accuracy
from coterie.evaluation.embedding import embedding_figure
from coterie.evaluation.matching import match

__all__ = ["Curve", "confusion_figure", "curves_figure", "embedding_figure"]

Curve = Sequence[tuple[int, float]]
"""(round, value) pairs, in the order of the rounds."""


def confusion_figure(table: Table, class_names: Sequence[str], path: Path) -> Path:
    """Draw true classes (rows) against matched clusters (columns), with the accuracy as title.

    Columns are in the order of the classes that the clusters are matched to, unmatched clusters
    beyond a line. Colour is the share of the class (each row sums to 1), the numbers are counts;
    above 30 × 30 cells there are only colours.

    Args:
        table: Counts (clusters, classes).
        class_names: The names of the classes, as many as the table has.
        path: Where to write the PNG; folders are made as needed.

    Returns:
        Path: `path`.

    Raises:
        DataError: If the names do not fit the table, or it holds no sample.
    """
    clusters, classes = table.shape
    if len(class_names) != classes:
        raise DataError(f"{len(class_names)} class names for {classes} classes: give one for each.")
    title = f"ACC {accuracy(table):.1%} after matching"
    pairs = match(table)
    order = sorted(range(clusters), key=lambda row: (pairs.get(row, classes), row))
    counts = table[order].T
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    figure = blank(2.6 + min(0.5 * clusters, 15), 1.9 + min(0.42 * classes, 13))
    axes = figure.add_subplot()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(clusters), [str(row) for row in order])
    axes.set_yticks(range(classes), class_names)
    axes.set(xlabel="cluster, in the order of its class", ylabel="true class")
    axes.tick_params(length=0)
    if max(clusters, classes) > 30:
        axes.tick_params(labelsize=4.5)
        axes.tick_params(axis="x", rotation=90)
    axes.set_title(title, fontsize=11)
    if classes < clusters:  # What lies beyond counts as wrong.
        axes.axvline(classes - 0.5, color="black", linewidth=1.2)
    if clusters * classes <= 30 * 30:
        _write_counts(axes, counts, shares)
    figure.colorbar(image, ax=axes, label="share of the class", pad=0.02)
    return save(figure, path)


def curves_figure(
    series: Mapping[str, Curve], path: Path, boundaries: Mapping[str, int] | None = None
) -> Path:
    """Draw curves against rounds: losses in one panel, clustering metrics in another.

    A series belongs to the losses if the last part of its name ("stage/loss") contains "loss".
    Curves of losses break where a stage begins, since stages minimise different ones.

    Args:
        series: Name to (round, value) pairs; values that are not finite leave gaps.
        path: Where to write the PNG; folders are made as needed.
        boundaries: Name of a stage to its first round: a line there, and the name above it.

    Returns:
        Path: `path`.

    Raises:
        DataError: If there is no curve to draw.
    """
    drawn = {name: curve for name, curve in series.items() if curve}
    losses = [name for name in drawn if "loss" in name.rpartition("/")[2].lower()]
    scores = [name for name in drawn if name not in losses]
    panels = [(label, names) for label, names in (("loss", losses), ("score", scores)) if names]
    if not panels:
        raise DataError(f"{len(series)} series without a point: give at least one (round, value).")
    figure = blank(7.5, 0.9 + 2.3 * len(panels))
    figure.suptitle(" and ".join(label for label, _ in panels).capitalize(), fontsize=12)
    grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (label, names) in zip(grid, panels, strict=True):
        for number, name in enumerate(names):
            breaks = sorted(boundaries.values()) if boundaries and label == "loss" else []
            _curve(axes, drawn[name], name, number, breaks)
        axes.set_ylabel(label)
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=9)
    grid[-1].set_xlabel("round")
    grid[-1].xaxis.get_major_locator().set_params(integer=True)
    _mark_stages(grid, boundaries or {})
    return save(figure, path)


def _write_counts(axes: Axes, counts: Table, shares: NDArray[np.float64]) -> None:
    """Write the counts that are not 0 into their cells, light on dark."""
    for (row, column), count in np.ndenumerate(counts):
        if count:
            colour = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, str(count), ha="center", va="center", fontsize=8, color=colour)


def _curve(axes: Axes, curve: Curve, name: str, number: int, breaks: Sequence[int]) -> None:
    """A line with about ten markers, broken before each round in `breaks`."""
    rounds, values = (np.array(part, dtype=np.float64) for part in zip(*curve, strict=True))
    every = max(1, len(rounds) // 10)
    colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
    gaps = [at for at in np.searchsorted(rounds, breaks) if 0 < at < len(rounds)]
    axes.plot(
        np.insert(rounds, gaps, np.nan),
        np.insert(values, gaps, np.nan),
        label=name,
        color=colour,
        marker=marker,
        markevery=every,
        markersize=4,
        lw=1.4,
    )


def _mark_stages(grid: NDArray[Any], boundaries: Mapping[str, int]) -> None:
    """A line half a round before each stage's first round, its name at the top of the figure."""
    for name, first in boundaries.items():
        for axes in grid:
            axes.axvline(first - 0.5, color="#444444", linewidth=0.9, linestyle="--", zorder=1)
        top = grid[0].get_xaxis_transform()
        grid[0].text(first - 0.5, 1.02, name, transform=top, fontsize=9, color="#444444")
