"""The figure of an embedding: a t-SNE map by true class and by cluster."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from coterie.clustering.contingency import contingency
from coterie.errors import DataError
from coterie.evaluation.canvas import Axes, blank, drawing, label, save, style
from coterie.evaluation.matching import match

_NAMED = 20
"""More groups than this are drawn without names: the legend would outgrow its panel."""

_ORDINARY = (1e-15, 1e15)
"""Spreads whose squares float32 can hold; t-SNE computes with these."""

_ITERATIONS = 500
"""Of t-SNE's gradient descent: 250 with exaggeration, then as many without."""

_Panel = tuple[str, NDArray[np.int64], list[str], list[int]]
"""A title, each sample's group, and each group's name and style."""


@drawing()
def embedding_figure(
    embeddings: NDArray[np.floating[Any]],
    labels: NDArray[np.integer[Any]] | None,
    assignments: NDArray[np.integer[Any]] | None,
    class_names: Sequence[str],
    path: Path,
    *,
    seed: int,
    sample: int = 1000,
    about: str = "",
) -> Path:
    """Draw a t-SNE map of a sample, coloured by true class and by cluster.

    PCA to at most 50 dimensions, then scikit-learn's t-SNE of 500 iterations. Clusters have the
    colours of the classes that they are matched to (on all samples), so that agreement shows.
    Without labels or without assignments there is one panel. Vectors that are all but equal,
    those of a collapsed encoder, are one point.

    Args:
        embeddings: Vectors (n, d), n of at least 5.
        labels: Classes (n,), indices into `class_names`, or None.
        assignments: Clusters (n,), -1 for outliers; None only if there are labels.
        class_names: The names of the classes; unused without labels.
        path: Where to write the PNG; folders are made as needed.
        seed: Of the sample and of t-SNE.
        sample: How many vectors to draw, at most.
        about: What was run, for the line below the figure.

    Raises:
        DataError: If a vector is not finite.
    """
    count = len(embeddings)
    bad = int((~np.isfinite(embeddings)).any(axis=1).sum())
    if bad:
        raise DataError(f"{bad} of {count} embeddings are not finite: check the encoder.")
    size = min(sample, count)
    rows = np.sort(np.random.default_rng(seed).permutation(count)[:size])
    points = tsne_points(embeddings[rows], seed)
    panels = _groups(labels, assignments, class_names)
    figure = blank(0.4 + 5.6 * len(panels), 4.7)
    figure.suptitle(f"t-SNE of {size:,} of {count:,} representations", fontsize=12)
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (title, groups, names, colours) in zip(grid, panels, strict=True):
        _scatter(axes, points, groups[rows], names, colours)
        axes.set_title(title, fontsize=11)
    return save(figure, path, about)


def tsne_points(vectors: NDArray[Any], seed: int) -> NDArray[np.float64]:
    """Return t-SNE coordinates (n, 2); all zero if the vectors are nearly equal."""
    # Half a second, which a run without figures need not wait for.
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    samples, features = vectors.shape
    values = _ordinary(vectors.astype(np.float64))
    if values is None:  # scikit-learn would divide by their spread, and crash at what comes of it
        return np.zeros((samples, 2))
    parts = min(50, samples, features)
    reduced = PCA(parts, svd_solver="full").fit_transform(values)
    if parts == 1:  # t-SNE's start needs two dimensions.
        reduced = np.hstack([reduced, np.zeros_like(reduced)])
    perplexity = min(30.0, (samples - 1) / 3)
    tsne = TSNE(2, perplexity=perplexity, init="pca", max_iter=_ITERATIONS, random_state=seed)
    with threadpool_limits(1):  # threads would wait for one another longer than they compute
        found = tsne.fit_transform(reduced)
    return np.asarray(found, dtype=np.float64)


def _ordinary(values: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Return the values, rescaled if their spread is extreme.

    None if it is not above their rounding.
    """
    size = float(np.abs(values).max()) or 1.0
    spread = float(np.ptp(values / size, axis=0).max())
    if spread <= 8 * np.finfo(np.float64).eps:
        return None
    if _ORDINARY[0] < size * spread < _ORDINARY[1]:
        return values
    rescaled: NDArray[np.float64] = (values / size - (values / size).mean(axis=0)) / spread
    return rescaled


def _groups(
    labels: NDArray[np.integer[Any]] | None,
    assignments: NDArray[np.integer[Any]] | None,
    class_names: Sequence[str],
) -> list[_Panel]:
    """Return the panels, by true class and by cluster, as far as these are known."""
    panels: list[_Panel] = []
    classes, matched = len(class_names), {}
    if labels is not None:
        names = list(class_names)
        panels.append(("true class", labels.astype(np.int64), names, list(range(classes))))
    if assignments is not None:
        clusters, away = int(assignments.max()) + 1, assignments < 0
        assignments = np.where(away, clusters, assignments)
        clusters += int(away.any())
        if labels is not None:
            matched = match(contingency(assignments, labels, clusters, classes))
        # A cluster without a class gets a style that no class has.
        base = classes if labels is not None else 0
        styles = [matched.get(row, base + row) for row in range(clusters)]
        names = [
            f"{row} ({class_names[matched[row]]})" if row in matched else str(row)
            for row in range(clusters)
        ]
        names[-1] = "outliers" if away.any() else names[-1]
        title = "cluster (and its class)" if matched else "cluster"
        panels.append((title, assignments.astype(np.int64), names, styles))
    return panels


def _scatter(
    axes: Axes,
    points: NDArray[np.float64],
    groups: NDArray[np.int64],
    names: Sequence[str],
    styles: Sequence[int],
) -> None:
    """Draw points by group; up to 20 groups are named in place and in a legend."""
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    if len(names) > _NAMED:
        _scatter_unnamed(axes, points, groups, styles)
        return
    halo = [withStroke(linewidth=2.5, foreground="white")]
    drawn_groups = sorted(set(groups.tolist()), key=lambda group: styles[group])
    handles = []
    for group in drawn_groups:
        x, y = points[groups == group].T
        colour, marker = style(styles[group])
        points_of = axes.scatter(x, y, s=12, c=colour, marker=marker, lw=0, alpha=0.8)
        points_of.set_label(names[group])
        handles.append(points_of)
        centre = int(np.hypot(x - np.median(x), y - np.median(y)).argmin())
        place, text = (x[centre], y[centre]), label(names[group].partition(" (")[0])
        axes.annotate(text, place, fontsize=9, ha="center", va="center", path_effects=halo)
    shown = [label(names[group]) for group in drawn_groups]
    # Handles are given, since matplotlib leaves names such as "_hidden" out.
    axes.legend(
        handles,
        shown,
        loc="center left",
        bbox_to_anchor=(1, 0.5),
        frameon=False,
        fontsize=9,
        markerscale=2,
    )


def _scatter_unnamed(
    axes: Axes, points: NDArray[np.float64], groups: NDArray[np.int64], styles: Sequence[int]
) -> None:
    """Draw points of many groups, all with one marker."""
    looks = [style(number) for number in styles]
    for marker in dict.fromkeys(marker for _, marker in looks):
        rows = np.array([looks[group][1] == marker for group in groups.tolist()])
        colours = [looks[group][0] for group in groups[rows].tolist()]
        x, y = points[rows].T
        axes.scatter(x, y, s=12, c=colours, marker=marker, lw=0, alpha=0.8)
