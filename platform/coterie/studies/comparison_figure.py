"""The figure of a comparison: per variant a line for the mean over seeds, with a band."""

import textwrap
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.image import imread
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from coterie.errors import DataError, printable
from coterie.evaluation.canvas import COLOURS, MARKERS, NAME, Axes, blank, drawing, label, save
from coterie.tracking.formatting import format_bytes

Line = tuple[NDArray[np.float64], NDArray[np.float64] | None]
"""A mean curve (2, n) of positions and values, and the edges (2, n) of its band, if any."""

_WIDE = 1.7
"""Width divided by height from which only two figures fit in a row."""
_LISTED = 30
"""Labels in the legend: as many as colours and markers tell apart."""


@drawing()
def comparison_figure(
    panels: Mapping[str, Mapping[str, Line]], axis: str, path: Path, note: str = "", about: str = ""
) -> Path:
    """Draw a panel per metric with a line per variant.

    Args:
        panels: Metric to label to line; a label has the same colour in all panels.
        axis: Name of the x-axis; "bytes" is shown in kB, MB and so on.
        path: The PNG to write; folders are made as needed.
        note: What the bands show, below the axis.
        about: What was run, for the line below the figure.

    Raises:
        DataError: If there is nothing to draw.
    """
    drawn = {metric: lines for metric, lines in panels.items() if _points(lines)}
    if not drawn:
        raise DataError(f"axis {axis}: no run has a point to draw; let the runs evaluate.")
    labels = list(dict.fromkeys(name for lines in drawn.values() for name in lines))
    named = {name: _wrapped(name) for name in labels[:_LISTED]}
    rows = sum(text.count("\n") + 1 for text in named.values())
    figure = blank(8.0, max(0.9 + 2.4 * len(drawn), 0.6 + 0.19 * (rows + 1)))
    grid = figure.subplots(len(drawn), 1, sharex=True, squeeze=False)[:, 0]
    handles: dict[str, Line2D] = {}
    for axes, (metric, lines) in zip(grid, drawn.items(), strict=True):
        for name, line in lines.items():
            if len(line[0][0]):
                handles[name] = _line(axes, line, labels.index(name))
        axes.set_ylabel(metric)
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    named = {name: text for name, text in named.items() if name in handles}
    grid[0].legend(  # with names given, since matplotlib leaves out "_name"
        [handles[name] for name in named],
        [*named.values()],
        loc="upper left",
        bbox_to_anchor=(1.01, 1),
        frameon=False,
        fontsize=9,
        title=f"the first {_LISTED} of {len(labels)}" if len(labels) > _LISTED else None,
    )
    label_axis(grid[-1], axis, note)
    return save(figure, path, about)


@drawing()
def panels_figure(pictures: Mapping[str, Path], path: Path, about: str = "") -> Path:
    """Put figures of at most 30 runs side by side: three in a row, or two if they are wide.

    Args:
        pictures: Label to PNG.
        path: The PNG to write; folders are made as needed.
        about: What was run, for the line below the figure.
    """
    shown = [(name, imread(picture)) for name, picture in list(pictures.items())[:_LISTED]]
    height = max(picture.shape[0] for _, picture in shown)
    width = max(picture.shape[1] for _, picture in shown)
    abreast, inches = (2, 8.0) if width > _WIDE * height else (3, 5.0)
    across = min(abreast, len(shown))
    down = -(-len(shown) // across)
    figure = blank(inches * across, (inches * height / width + 0.4) * down + 0.3)
    grid = figure.subplots(down, across, squeeze=False).ravel()
    for axes in grid:
        axes.axis("off")
    for axes, (name, picture) in zip(grid, shown, strict=False):
        axes.imshow(picture, interpolation="antialiased")
        axes.set(xlim=(0, width), ylim=(height, 0))  # all at one scale
        axes.set_title(label(name), fontsize=10)
    return save(figure, path, about)


def _wrapped(name: str) -> str:
    """Return a label on up to three lines, so that the values of several keys can be read."""
    return textwrap.fill(
        printable(name), NAME, max_lines=3, placeholder=" …", break_on_hyphens=False
    )


def _points(lines: Mapping[str, Line]) -> int:
    return sum(mean.shape[1] for mean, _ in lines.values())


def _line(axes: Axes, line: Line, number: int) -> Line2D:
    """Draw a mean and its band; return the line for the legend."""
    (places, values), edges = line
    colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
    every = max(1, len(places) // 10)
    (handle,) = axes.plot(
        places,
        values,
        color=colour,
        marker=marker,
        markevery=every,
        markersize=4,
        lw=1.4,
    )
    if edges is None:
        return handle
    axes.fill_between(places, *edges, color=colour, alpha=0.18, linewidth=0)
    if len(places) == 1:  # a band of width zero is invisible
        half = (edges[1] - edges[0]) / 2
        axes.errorbar(places, values, yerr=half, color=colour, capsize=3, lw=1.2)
    return handle


def label_axis(axes: Axes, axis: str, note: str) -> None:
    """Name the x-axis, with whole numbers for rounds."""
    axes.set_xlabel(f"{axis}\n{note}" if note else axis)
    if axis == "round":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    elif axis == "bytes":
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5))  # their labels are wide
        axes.xaxis.set_major_formatter(FuncFormatter(lambda count, _: format_bytes(count)))
