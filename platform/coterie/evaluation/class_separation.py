"""Distances between representations of different classes, relative to those within a class."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from coterie.contract.metric import Metric
from coterie.evaluation.canvas import blank, drawing, save, ticks, widest

_ROWS = 1024
_SAMPLE = 2000
"""Samples of the figure."""
_MOST_TICKS = 30
Distances = NDArray[np.float64]


class ClassSeparation(Metric):
    """Mean distance between classes over the mean distance within one: CF-CL, figure 4.

    It is one number of `class_distances`, above 1 if classes are apart, and the representation's
    scale does not matter. NaN if there are no two classes, or no class has two samples.
    """

    def __call__(
        self,
        embedding: Tensor,
        assignments: NDArray[np.int64] | None,
        labels: NDArray[np.int64],
    ) -> float:
        """Return the ratio; see `Metric`."""
        sums, pairs = _pairs(embedding, labels)
        same = np.eye(len(sums), dtype=bool)
        within, between = (
            sums[kind].sum() / pairs[kind].sum() if pairs[kind].sum() else float("nan")
            for kind in (same, ~same)
        )
        return float(between / within) if within else float("nan")


def class_distances(embedding: Tensor, labels: NDArray[np.int64]) -> Distances:
    """Return the mean Euclidean distance between each pair of classes, symmetric (C, C).

    Samples are not paired with themselves. NaN where there is no pair.

    Args:
        embedding: Representations (n, d).
        labels: Classes (n,), −1 where unknown: these samples do not count.
    """
    sums, pairs = _pairs(embedding, labels)
    return np.divide(sums, pairs, out=np.full_like(sums, np.nan), where=pairs > 0)


def _pairs(embedding: Tensor, labels: NDArray[np.int64]) -> tuple[Distances, Distances]:
    """Return sums of distances and numbers of ordered pairs, by both samples' classes (C, C)."""
    known = torch.from_numpy(labels >= 0)
    points, classes = embedding[known].double(), torch.from_numpy(labels)[known]
    if not len(points):
        return np.zeros((0, 0)), np.zeros((0, 0))
    members = one_hot(classes).double()
    sums = torch.zeros(members.shape[1], members.shape[1], dtype=torch.float64)
    for start in range(0, len(points), _ROWS):
        rows = slice(start, start + _ROWS)
        sums += members[rows].T @ torch.cdist(points[rows], points) @ members
    counts = members.sum(dim=0)
    pairs = torch.outer(counts, counts) - torch.diag(counts)
    return sums.numpy(), pairs.numpy()


@drawing()
def class_distances_figure(
    embedding: Tensor,
    labels: NDArray[np.int64],
    class_names: Sequence[str],
    path: Path,
    *,
    seed: int,
    about: str = "",
) -> Path:
    """Draw `class_distances` of up to 2,000 samples as a heat map, as in CF-CL, figure 4.

    Colours are in units of the mean distance within a class: a dark diagonal on a light ground
    means that classes are apart.

    Args:
        embedding: Representations (n, d).
        labels: Classes (n,), −1 where unknown.
        class_names: The names of the classes.
        path: Where to write the PNG.
        seed: Of the draw of samples.
        about: What was run, for the line below the figure.
    """
    rows = np.sort(np.random.default_rng(seed).permutation(np.flatnonzero(labels >= 0))[:_SAMPLE])
    found = class_distances(embedding[torch.from_numpy(rows)], labels[rows])
    unit = np.nanmean(np.diagonal(found))
    names = widest(class_names)
    figure = blank(6.2 + names, 5.2 + names)
    axes = figure.add_subplot()
    image = axes.imshow(found / unit, cmap="viridis")
    axes.set_xticks(*ticks(class_names[: len(found)], _MOST_TICKS), rotation=90)
    axes.set_yticks(*ticks(class_names[: len(found)], _MOST_TICKS))
    axes.set_title(f"mean distances between classes, {len(rows):,} samples", fontsize=11)
    figure.colorbar(image, ax=axes, label="in units of that within a class", pad=0.02)
    return save(figure, path, about)
