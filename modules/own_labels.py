"""Clusters whose linear classifier is fitted repeatedly to its own labels.

As TURTLE (Gadetsky et al., ICML 2024), it looks for the labels that a linear classifier of fixed
representations learns best, here by alternating: a sample's label is the classifier's, and the
classifier is the ridge regression on these labels in which all clusters weigh alike. Each round
needs sums over samples only.

It ends at other labels from other first ones. So several starts go side by side for some rounds,
and the one goes on whose regression explains most of its labels.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float64, Int, Int64
from torch import Tensor

from coterie.contract import Bounds, Slots, Tensors
from coterie.modules.exact_sums import PRODUCTS
from coterie.networks.quadratic import FINE, QuadraticClassifier, fit_sums, fitted, largest_value

OWN, OWN_SUMS = "own", "own_sums"
WEIGHTS, SCALES, COUNTS, TARGETS = "weights", "scales", "counts", "targets"
STARTS = 5
"""The most starts that are followed at the same time."""
TOGETHER = 6
"""Rounds for which they are followed."""
_RIDGE = 0.05
"""Added to the features' mean products, as a share of their mean diagonal entry."""
_LARGEST = 16.0
"""Largest weight of a sample, as a root: clusters below 1/256 of their share weigh less."""


def started(counts: Float64[Tensor, "s k"], width: int) -> Slots:
    """Return the slots before the first fit: classifiers and sums of zeros.

    Args:
        counts: Samples of each cluster, for each start.
        width: Number of features.
    """
    nothing = torch.zeros(len(counts), 1 + width, counts.shape[1], dtype=torch.int64)
    return _slots({WEIGHTS: nothing, SCALES: _scales(counts)})


def _slots(classifiers: dict[str, Tensor]) -> Slots:
    """Return slots with these classifiers, and zeros for the sums of the next fit."""
    starts, size, clusters = classifiers[WEIGHTS].shape
    shapes = {PRODUCTS: (size * (size + 1) // 2,), TARGETS: (size, clusters), COUNTS: (clusters,)}
    sums = {name: torch.zeros(starts, *of, dtype=torch.float64) for name, of in shapes.items()}
    return {OWN: classifiers, OWN_SUMS: sums}


def own_sums(
    points: Int[Tensor, "n c"], first: Callable[[], Int64[Tensor, "s n"]], classifiers: Tensors
) -> dict[str, Tensor]:
    """Return each start's sums over samples, with labels from its classifier.

    Args:
        points: Unit vectors, on the lattice.
        first: Gives the labels while the classifiers know nothing.
        classifiers: Of `started` or `refitted`.
    """
    weights, scales = classifiers[WEIGHTS], classifiers[SCALES]
    knows = bool(weights.any())
    labels = [_labels(points, each) for each in weights] if knows else first()
    each = [_sums(points, *pair) for pair in zip(labels, scales, strict=True)]
    return {name: torch.stack([sums[name] for sums in each]) for name in each[0]}


def _labels(points: Int[Tensor, "n c"], weights: Int64[Tensor, "q k"]) -> Int64[Tensor, "n"]:
    model = QuadraticClassifier(weights, points.shape[1])
    parts = torch.split(points.int(), 4096)
    return torch.cat([model.values(part).argmax(dim=1) for part in parts])


def _sums(
    points: Int[Tensor, "n c"], labels: Int64[Tensor, "n"], scales: Float64[Tensor, "k"]
) -> dict[str, Tensor]:
    """Return one start's sums."""
    sums = fit_sums(points, [labels], len(scales), 0, scales)
    counts = labels.bincount(minlength=len(scales)).double()
    return {**dict(zip((PRODUCTS, TARGETS), sums, strict=True)), COUNTS: counts}


def sum_bounds(width: int, scales: Float64[Tensor, "k"]) -> dict[str, Bounds]:
    """Return bounds on what a sample adds to the sums."""
    largest = largest_value(width) * (1 + float(scales.max()))
    return {
        PRODUCTS: Bounds(highest=largest**2),
        TARGETS: Bounds(highest=largest),
        COUNTS: Bounds(lowest=0.0, highest=1.0),
    }


def refitted(sums: Tensors, scales: Float64[Tensor, "s k"], rounds: int, refits: int) -> Slots:
    """Return slots with the fitted classifiers, and zeros for the next sums.

    Args:
        sums: Over all samples.
        scales: The weights of the clusters in these sums.
        rounds: The number of this fit, from 1.
        refits: The number of all fits.
    """
    targets = sums[TARGETS] * scales[:, None]
    fits = [
        fitted(products, of, _RIDGE) for products, of in zip(sums[PRODUCTS], targets, strict=True)
    ]
    found = {WEIGHTS: torch.stack(fits), SCALES: _scales(sums[COUNTS])}
    if rounds == min(TOGETHER, refits):
        explained = (targets * found[WEIGHTS].double() / FINE).sum(dim=(1, 2))
        best = int(explained.argmax())
        found = {name: value[best : best + 1] for name, value in found.items()}
    return _slots(found)


def _scales(counts: Float64[Tensor, "s k"]) -> Float64[Tensor, "s k"]:
    """Return the square roots of weights by which small and large clusters count equally."""
    share = counts.sum(dim=1, keepdim=True) / counts.shape[1]
    return (share / counts.clamp_min(1)).sqrt().clamp_max(_LARGEST)
