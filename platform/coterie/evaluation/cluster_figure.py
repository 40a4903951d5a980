"""The figure of a run's clusters: their sizes, confidence, and mean images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from torch import Tensor

from coterie.clustering.kmeans import kmeans
from coterie.contract.data import Samples
from coterie.evaluation.canvas import COLOURS, Axes, Figure, blank, drawing, save

FEWEST = 10
"""The fewest samples behind a mean image, so that no client's sample is shown."""
_ACROSS = 8
"""Mean images per cluster."""
_MOST = 1000
"""Most samples of a cluster behind its mean images."""
_ROWS = 30
"""Number of clusters that are drawn, the largest ones."""
_SAMPLE = 1000
"""Samples of the silhouette."""
_NUMBERS = range(2, 21)
"""Numbers of clusters whose silhouette is drawn."""


@dataclass(frozen=True)
class Clustered:
    """Samples with their clusters.

    Attributes:
        embedding: Representations (n, d).
        assignments: Clusters (n,), counted from 0; -1 for outliers.
        confidence: Probabilities (n,) of these clusters.
    """

    embedding: Tensor
    assignments: NDArray[np.int64]
    confidence: NDArray[np.float32]
    samples: Samples


@drawing()
def cluster_figure(found: Clustered, path: Path, *, seed: int, about: str = "") -> Path:
    """Draw a row per cluster, and the silhouette of other numbers of clusters, without labels.

    A row has the cluster's number of samples, their mean confidence and, of images, the means of
    up to eight groups of at least ten similar samples. The silhouette (Rousseeuw, 1987) is that of
    k-means on a sample of the representations: a guide to the number of clusters, not a proof.
    """
    clusters, sizes = np.unique(found.assignments, return_counts=True)
    drawn = [int(cluster) for cluster in clusters[np.argsort(-sizes, kind="stable")][:_ROWS]]
    images = found.samples.dtype == np.uint8 and len(found.samples.shape) == 4
    members = {cluster: np.flatnonzero(found.assignments == cluster) for cluster in drawn}
    means = [mean_images(found, own, seed) if images else [] for own in members.values()]
    across = max(map(len, means))
    figure = blank(8.0 + 0.32 * across, 1.4 + max(0.62 * len(drawn), 2.6))
    ratios = [1 + 0.14 * across, 1]
    left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=ratios)[0]
    _draw_rows(left, found, members, means)
    _draw_silhouette(right.add_subplot(), found, seed)
    return save(figure, path, about)


def _draw_rows(
    figure: Figure,
    found: Clustered,
    members: Mapping[int, NDArray[np.int64]],
    means: Sequence[Sequence[NDArray[np.float64]]],
) -> None:
    """Draw sizes and confidence of clusters, and their mean images."""
    grid = figure.subplots(len(members), 1 + max(map(len, means)), squeeze=False)
    largest = max(map(len, members.values()))
    for row, images, (cluster, own) in zip(grid, means, members.items(), strict=True):
        bar: Axes = row[0]
        bar.barh([0], [len(own)], color=COLOURS[0])
        bar.set_xlim(0, largest)
        bar.set_ylim(-1.6, 0.6)
        sure = float(found.confidence[own].mean())
        name = "outliers" if cluster < 0 else cluster
        bar.text(0, -0.55, f"{name}: {len(own):,}, sure {sure:.2f}", fontsize=8, va="top")
        bar.axis("off")
        for axes in row[1:]:
            axes.axis("off")
        for axes, image in zip(row[1:], images, strict=False):
            axes.imshow(image, cmap="gray", vmin=0, vmax=255)
    what = f",\nmeans of {FEWEST} or more similar samples" if any(means) else ""
    figure.suptitle(f"clusters: samples, confidence{what}", fontsize=11)


def mean_images(
    found: Clustered, members: NDArray[np.int64], seed: int
) -> list[NDArray[np.float64]]:
    """Return means of groups of similar samples of a cluster, the largest group first.

    Args:
        found: The samples with their clusters.
        members: Rows (m,) of the cluster.
        seed: Of the draw of up to 1,000 members, and of k-means.

    Returns:
        Images in 0..255: (height, width), or (height, width, 3) in colour. None of fewer than ten
        samples.
    """
    generator = np.random.default_rng(seed)
    rows = np.sort(generator.permutation(members)[:_MOST])
    groups = min(_ACROSS, len(rows) // (2 * FEWEST))
    if groups == 0:
        labels = np.zeros(len(rows), np.int64)
    else:
        points = found.embedding[torch.from_numpy(rows)].float()
        labels = kmeans(points, groups, seed=seed, restarts=1).assignments.numpy()
    pixels = found.samples[rows].astype(np.float64)
    means = [
        (int((labels == group).sum()), pixels[labels == group].mean(axis=0))
        for group in np.unique(labels)
        if (labels == group).sum() >= FEWEST
    ]
    ordered = sorted(means, key=lambda pair: -pair[0])
    return [mean[0] if len(mean) != 3 else np.moveaxis(mean, 0, 2) / 255 for _, mean in ordered]


def _draw_silhouette(axes: Axes, found: Clustered, seed: int) -> None:
    from sklearn.metrics import silhouette_score  # half a second, spent only where it is drawn
    from threadpoolctl import threadpool_limits

    generator = np.random.default_rng(seed)
    rows = np.sort(generator.permutation(len(found.embedding))[:_SAMPLE])
    points = found.embedding[torch.from_numpy(rows)].float()
    scores = {}
    for number in _NUMBERS:
        if number >= len(points):
            break
        labels = kmeans(points, number, seed=seed, restarts=3).assignments.numpy()
        if len(np.unique(labels)) > 1:
            with threadpool_limits(1):
                scores[number] = silhouette_score(points.numpy(), labels)
    axes.plot(list(scores), list(scores.values()), color=COLOURS[0], marker="o", markersize=4)
    own = len(np.unique(found.assignments[found.assignments >= 0]))
    near = own < 2 * _NUMBERS.stop  # a line far away would leave no room for the curve
    if near:
        axes.axvline(own, color=COLOURS[2], linestyle=":", linewidth=1)
    axes.set(xlabel="clusters of k-means", ylabel="silhouette")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    which = "dotted: this run's" if near else f"this run has {own:,}"
    axes.set_title(f"other numbers of clusters\n({which})", fontsize=10)
    axes.grid(alpha=0.3)
