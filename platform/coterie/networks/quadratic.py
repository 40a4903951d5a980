"""A quadratic classifier that is fitted from exact sums: least squares on products of features.

A least-squares fit needs Σ φ φᵀ and Σ φ y only, which add up over clients. With products of
features in φ, its borders between classes are quadrics. Everything is in integers until the last
division, so a sample's probabilities depend on neither batch, threads nor processor.
"""

from collections.abc import Sequence
from math import isqrt

import numpy as np
import torch
from jaxtyping import Float, Float64, Int, Int32, Int64
from scipy.linalg import cho_factor, cho_solve
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from coterie.clustering.lattice import UNIT, off_lattice, products, rounded

FINE = 2**20
"""Steps of a weight per unit."""
_SAMPLES = 16
"""The fewest samples for each value of φ."""
_ROWS = 2048
"""Samples whose φ is held at a time."""
RIDGE = 0.01
"""Ridge of a fit of quadrics; see `fitted`."""


def products_of(width: int, samples: int) -> int:
    """Return the number of features to take products of, so that φ has 16 samples per value.

    Args:
        width: Number of features c; φ holds 1, the features, and m (m + 1) / 2 products.
        samples: Number of samples to fit to.

    Returns:
        m, at most c.
    """
    room = max(0, samples // _SAMPLES - width - 1)
    return min(width, (isqrt(8 * room + 1) - 1) // 2)


def expand(points: Int[Tensor, "n c"], leading: int) -> Int32[Tensor, "n q"]:
    """Return φ of points on the lattice: 1, the features, and products of the first ones.

    Args:
        points: Unit vectors, on the lattice. They are scaled by a power of two near √c, so that a
            feature's mean square is near 1.
        leading: How many features have their products in φ.
    """
    scaled = points.double() * scale_of(points.shape[1])
    parts = [torch.full_like(scaled[:, :1], UNIT), scaled]
    if leading:  # ONNX has no empty index
        row, column = torch.triu_indices(leading, leading)
        parts.append((scaled[:, row] * scaled[:, column] / UNIT).round())
    return torch.cat(parts, dim=1).int()


def largest_value(width: int) -> float:
    """Return the largest magnitude of a value of φ, for unit vectors of this width."""
    return (1.01 * scale_of(width)) ** 2 + 1.0


def scale_of(width: int) -> float:
    """Return a power of two near √c."""
    return float(2 ** round(np.log2(width) / 2))


def fit_sums(
    points: Int[Tensor, "n c"],
    labels: Sequence[Int64[Tensor, "n"]],
    classes: int,
    leading: int,
    scales: Float64[Tensor, "k"] | None = None,
) -> tuple[Float64[Tensor, "t"], Float64[Tensor, "q k*l"]]:
    """Return the upper triangle of Σ φ φᵀ, row by row, and Σ φ yᵀ of one-hot labels y.

    Args:
        points: Unit vectors, on the lattice.
        labels: One or several labels of each; their columns of Σ φ yᵀ follow each other.
        classes: Number of classes k of each.
        leading: See `expand`.
        scales: What φ is multiplied with in each class of the first labels; by default 1.
    """
    size = 1 + points.shape[1] + leading * (leading + 1) // 2
    second = torch.zeros(size, size, dtype=torch.float64)
    targets = torch.zeros(size, classes * len(labels), dtype=torch.float64)
    columns = torch.stack([own + place * classes for place, own in enumerate(labels)])
    for part, own in zip(
        torch.split(points, _ROWS), torch.split(columns, _ROWS, dim=1), strict=True
    ):
        values = expand(part, leading)
        if scales is not None:
            values = (values * scales[own[0], None]).round().int()
        second += products(values)
        for each in own:
            targets.index_add_(1, each, off_lattice(values).T)
    row, column = torch.triu_indices(size, size)
    return second[row, column], targets


def fitted(
    triangle: Float64[Tensor, "t"], targets: Float64[Tensor, "q k"], ridge: float = RIDGE
) -> Int64[Tensor, "q k"]:
    """Return the weights of the ridge regression on one-hot labels, in steps of 2^-20.

    Args:
        triangle: Of Σ φ φᵀ.
        targets: Σ φ yᵀ.
        ridge: Added to Σ φ φᵀ, as a share of its mean diagonal entry.
    """
    size = len(targets)
    matrix = np.zeros((size, size))
    matrix[np.triu_indices(size)] = triangle.numpy()
    matrix += ridge * matrix.trace() / size * np.eye(size)
    with threadpool_limits(1):
        weights = cho_solve(cho_factor(matrix), targets.numpy())
    return torch.from_numpy(np.round(weights * FINE).astype(np.int64))


class QuadraticClassifier(nn.Module):
    """Probabilities of classes: cubes of the regression's values, where above 0, over their sum.

    The values alone are too cautious. With their cubes the probability of the chosen class is near
    the share of samples on which runs of two seeds agree (docs/results/concord.md).

    Args:
        weights: As of `fitted`.
        width: Number of features c.
    """

    weights: Tensor

    def __init__(self, weights: Int64[Tensor, "q k"], width: int) -> None:
        super().__init__()
        self.register_buffer("weights", weights)
        self.leading = (isqrt(8 * (len(weights) - width - 1) + 1) - 1) // 2

    def forward(self, representations: Float[Tensor, "n c"]) -> Float[Tensor, "n k"]:
        """Map unit vectors to probabilities, in float32."""
        scores = self.values(rounded(representations).int()).clamp_min(0.0) ** 3
        return (scores / scores.sum(dim=1, keepdim=True).clamp_min(1e-9)).float()

    def values(self, points: Int[Tensor, "n c"]) -> Float64[Tensor, "n k"]:
        """Return the regression's values of points on the lattice; exact."""
        values = expand(points, self.leading).double()
        return values @ self.weights.double() / (UNIT * FINE)
