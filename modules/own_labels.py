"""Clusters whose linear classifier is fitted again to its own labels.

As TURTLE (Gadetsky et al., ICML 2024), it looks for the labels that a linear classifier of fixed
representations learns best, here by alternating: a sample's label is the classifier's, and the
classifier is the ridge regression on these labels in which all clusters weigh alike. Each round
needs sums over samples only.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float64, Int, Int64
from torch import Tensor

from coterie.contract import Bounds, Tensors
from coterie.modules.exact_sums import PRODUCTS
from coterie.networks.quadratic import QuadraticClassifier, fit_sums, fitted, largest_value

OWN = "own"
WEIGHTS, SCALES, COUNTS, TARGETS = "weights", "scales", "counts", "targets"
_RIDGE = 0.05
"""Added to the features' mean products, as a share of their mean diagonal entry."""
_LARGEST = 16.0
"""Largest weight of a sample, as a root: clusters below 1/256 of their share weigh less."""


def started(counts: Float64[Tensor, "k"], width: int) -> dict[str, Tensor]:
    """Return what goes down before there is a classifier: roots of samples' weights.

    Args:
        counts: Samples of each cluster.
        width: Number of features.
    """
    nothing = torch.zeros(1 + width, len(counts), dtype=torch.int64)
    return {WEIGHTS: nothing, SCALES: _scales(counts)}


def no_sums(width: int, clusters: int) -> dict[str, Tensor]:
    """Return the shapes of the sums, zero."""
    size = 1 + width
    shapes = {PRODUCTS: (size * (size + 1) // 2,), TARGETS: (size, clusters), COUNTS: (clusters,)}
    return {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}


def own_sums(
    points: Int[Tensor, "n c"], first: Int64[Tensor, "n"], classifier: Tensors
) -> dict[str, Tensor]:
    """Return sums over samples with the labels that the classifier gives them.

    Args:
        points: Unit vectors, on the lattice.
        first: Labels while the classifier knows nothing.
        classifier: Of `started` or `refitted`.
    """
    weights, scales = classifier[WEIGHTS], classifier[SCALES]
    labels = first
    if bool(weights.any()):
        model = QuadraticClassifier(weights, points.shape[1])
        labels = torch.cat(
            [model.values(part).argmax(dim=1) for part in torch.split(points.int(), 4096)]
        )
    sums = fit_sums(points, [labels], len(scales), 0, scales)
    counts = labels.bincount(minlength=len(scales)).double()
    return {**dict(zip((PRODUCTS, TARGETS), sums, strict=True)), COUNTS: counts}


def sum_bounds(width: int, scales: Float64[Tensor, "k"]) -> dict[str, Bounds]:
    """Return what a sample adds to the sums."""
    largest = largest_value(width) * (1 + float(scales.max()))
    return {
        PRODUCTS: Bounds(highest=largest**2),
        TARGETS: Bounds(highest=largest),
        COUNTS: Bounds(lowest=0.0, highest=1.0),
    }


def refitted(sums: Tensors, scales: Float64[Tensor, "k"]) -> Mapping[str, Tensor]:
    """Return the next classifier, and samples' weights by these clusters' sizes."""
    weights = fitted(sums[PRODUCTS], sums[TARGETS] * scales, _RIDGE)
    return {WEIGHTS: weights, SCALES: _scales(sums[COUNTS])}


def _scales(counts: Float64[Tensor, "k"]) -> Float64[Tensor, "k"]:
    """Roots of the weights with which clusters weigh alike, 1 in the mean over samples."""
    return (counts.sum() / (len(counts) * counts.clamp_min(1))).sqrt().clamp_max(_LARGEST)
