"""Figures of a run as PNG files: confusion matrix, training curves and embedding.

Drawn through matplotlib's objects without pyplot, so they need no display and leave no
state behind. Colours are told apart under the common forms of colour blindness, and classes and
clusters are also named in place.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from coterie.clustering.contingency import Table
from coterie.errors import DataError
from coterie.evaluation.canvas import blank, drawing, save, ticks, widest, write_counts
from coterie.evaluation.clustering_metrics import accuracy
from coterie.evaluation.curves_figure import Curve, curves_figure
from coterie.evaluation.embedding import embedding_figure
from coterie.evaluation.matching import match

_MOST_TICKS = 60

__all__ = ["Curve", "confusion_figure", "curves_figure", "embedding_figure"]


@drawing()
def confusion_figure(table: Table, class_names: Sequence[str], path: Path, about: str = "") -> Path:
    """Draw true classes (rows) against matched clusters (columns), with the accuracy as title.

    Columns are in the order of the classes that the clusters are matched to, unmatched clusters
    beyond a line. Colour is the share of the class (each row sums to 1), the numbers are counts;
    above 30 × 30 cells there are only colours, and not every row and column is named.

    Args:
        table: Counts (clusters, classes).
        class_names: The names of the classes, as many as the table has.
        path: Where to write the PNG; folders are made as needed.
        about: What was run, for the line below the figure.

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
    width = max(4.4, 2.6 + min(0.5 * clusters, 15) + widest(class_names))
    figure = blank(width, 1.9 + min(0.42 * classes, 13))
    axes = figure.add_subplot()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(*ticks(order, _MOST_TICKS))
    axes.set_yticks(*ticks(class_names, _MOST_TICKS))
    axes.set(xlabel="cluster, in the order of its class", ylabel="true class")
    axes.tick_params(length=0)
    if max(clusters, classes) > 30:
        axes.tick_params(labelsize=7)
        axes.tick_params(axis="x", rotation=90)
    axes.set_title(title, fontsize=11)
    if classes < clusters:  # What lies beyond counts as wrong.
        axes.axvline(classes - 0.5, color="black", linewidth=1.2)
    if clusters * classes <= 30 * 30:
        write_counts(axes, counts, shares > 0.5)
    figure.colorbar(image, ax=axes, label="share of the class", pad=0.02)
    return save(figure, path, about, 200 if max(clusters, classes) <= _MOST_TICKS else 110)
