"""A linear classifier on the lattice, whose bits depend on neither batch nor threads."""

import numpy as np
import torch
from jaxtyping import Float, Float64, Int32, Int64
from torch import Tensor, nn

from coterie.clustering.lattice import UNIT, rounded
from coterie.networks.quadratic import expand

FINE = 2**20
"""Steps of a weight per unit."""
_LOWEST = -1000.0
"""Powers of two below 2^-1000 count as that."""
_COEFFICIENTS = tuple(float(c) for c in np.cumprod([1.0, *(np.log(2) / n for n in range(1, 12))]))
"""Taylor's series of 2^x."""
_ODD = tuple(2 / (float(np.log(2)) * n) for n in range(1, 20, 2))
"""Series of log₂((1 + y) / (1 - y)) in odd powers of y."""


class LatticeSoftmax(nn.Module):
    """Probabilities 2^z / Σ 2^z of clusters, z linear in the features.

    Args:
        weights: In steps of 2^-20, the constant's first.
    """

    weights: Tensor

    def __init__(self, weights: Int64[Tensor, "f k"]) -> None:
        super().__init__()
        self.register_buffer("weights", weights)

    def forward(self, representations: Float[Tensor, "n c"]) -> Float[Tensor, "n k"]:
        """Map unit vectors to probabilities, in float32."""
        return self.of(expand(rounded(representations).int(), leading=0)).float()

    def of(self, features: Int32[Tensor, "n f"]) -> Float64[Tensor, "n k"]:
        """Map features on the lattice (see `expand`) to probabilities."""
        logits = self.logits(features)
        powers = powers_of_two(logits - logits.amax(dim=1, keepdim=True))
        total = powers[:, 0].clone()
        for column in powers.T[1:]:  # in this order, whatever the batch
            total += column
        return powers / total[:, None]

    def logits(self, features: Int32[Tensor, "n f"]) -> Float64[Tensor, "n k"]:
        """Return z in bits, exact."""
        return features.double() @ self.weights.double() / (UNIT * FINE)


def powers_of_two(exponents: Float64[Tensor, "*shape"]) -> Float64[Tensor, "*shape"]:
    """Return 2^x of x ≤ 0, to nine digits, by products and sums alone.

    `torch.exp` may round the last bit of a value differently by its place in a batch.
    """
    bounded = exponents.clamp_min(_LOWEST)
    whole = bounded.floor()
    part = bounded - whole
    value = torch.full_like(part, _COEFFICIENTS[-1])
    for coefficient in _COEFFICIENTS[-2::-1]:
        value = value * part + coefficient
    return value * ((whole.long() + 1023) * 2**52).view(torch.float64)


def logs_of_two(values: Float64[Tensor, "*shape"]) -> Float64[Tensor, "*shape"]:
    """Return log₂ x of x > 0, to twelve digits, by the four operations alone.

    `torch.log2` may round the last bit of a value differently by its place in a batch.
    """
    part, whole = torch.frexp(values)
    small = part < 0.5**0.5
    part, whole = torch.where(small, 2 * part, part), whole - small.int()
    ratio = (part - 1) / (part + 1)
    square = ratio * ratio
    total = torch.full_like(square, _ODD[-1])
    for coefficient in _ODD[-2::-1]:
        total = total * square + coefficient
    logs: Tensor = whole.double() + ratio * total
    return logs
