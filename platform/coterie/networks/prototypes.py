"""Concord's parts of a model: a projection of features, and clusters of prototypes."""

import torch
from jaxtyping import Float, Float64, Int, Int32
from torch import Tensor, nn

from coterie.clustering.lattice import UNIT, off_lattice
from coterie.precision import unit_rows

FINE = 2**16
"""Steps of a projection's entries, at most 1 in magnitude, per unit."""


class LatticeProjection(nn.Module):
    """Centres, projects and normalises features exactly, so that their bits depend on no batch.

    Args:
        mean: The features' mean, on the lattice.
        directions: Directions to project on, in steps of 2^-16.
    """

    mean: Tensor
    directions: Tensor

    def __init__(self, mean: Int[Tensor, "d"], directions: Int[Tensor, "d c"]) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("directions", directions)
        self.width = directions.shape[1]

    def forward(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n c"]:
        """Map features to unit vectors whose entries are multiples of 2^-12."""
        steps = (features.double() * UNIT).round() - self.mean.double()
        seen = (steps @ self.directions.double() / FINE).round()
        norms = seen.square().sum(dim=1, keepdim=True).sqrt().clamp_min(1.0)
        return (seen / norms * UNIT).round().div(UNIT).to(features.dtype)


class Prototypes(nn.Module):
    """Assignment by prototypes, each with a cluster, by the votes of the nearest.

    The probability of a cluster is the share of its prototypes in Σ n_j exp(−‖h − p_j‖² / τ), the
    responsibilities of a mixture of equal Gaussians with as many components as prototypes.

    Args:
        points: Prototypes, on the lattice.
        counts: Samples that each stands for.
        members: The cluster of each, one-hot.
        temperature: τ > 0; the smaller, the more the nearest prototype decides.
    """

    points: Tensor
    masses: Tensor
    members: Tensor
    temperature: Tensor

    def __init__(
        self,
        points: Int[Tensor, "m c"],
        counts: Float64[Tensor, "m"],
        members: Float64[Tensor, "m k"],
        temperature: Float64[Tensor, ""],
    ) -> None:
        super().__init__()
        self.register_buffer("points", points)
        self.register_buffer("masses", counts.log())
        self.register_buffer("members", members)
        self.register_buffer("temperature", temperature)

    def forward(self, representations: Float[Tensor, "n c"]) -> Float[Tensor, "n k"]:
        """Map representations to probabilities, in float32."""
        return self._votes(self._away(representations)).float()

    def _away(self, representations: Float[Tensor, "n c"]) -> Float64[Tensor, "n m"]:
        """Return squared distances to the prototypes."""
        wide, points = representations.double(), off_lattice(self.points)
        return wide.square().sum(1, keepdim=True) - 2 * wide @ points.T + points.square().sum(1)

    def _votes(self, away: Float64[Tensor, "n m"]) -> Float64[Tensor, "n k"]:
        return (self.masses - away / self.temperature).softmax(dim=1) @ self.members


class BoundedPrototypes(Prototypes):
    """Assignment by prototypes to k clusters and, as the last, to the outliers.

    A sample beyond the reach of its nearest prototype is an outlier, for certain.

    Args:
        points: Prototypes, on the lattice.
        counts: Samples that each stands for.
        members: The cluster of each, one-hot; k for those that stand for outliers.
        temperature: As of `Prototypes`.
        reach: The squared distance to each up to which samples may be of its cluster.
    """

    reach: Tensor

    def __init__(
        self,
        points: Int[Tensor, "m c"],
        counts: Float64[Tensor, "m"],
        members: Float64[Tensor, "m k+1"],
        temperature: Float64[Tensor, ""],
        reach: Float64[Tensor, "m"],
    ) -> None:
        super().__init__(points, counts, members, temperature)
        self.register_buffer("reach", reach)

    def forward(self, representations: Float[Tensor, "n c"]) -> Float[Tensor, "n k+1"]:
        """Map representations to probabilities, in float32."""
        away = self._away(representations)
        least, nearest = away.min(dim=1, keepdim=True)
        votes = self._votes(away)
        outlier = torch.zeros_like(votes[:1])
        outlier[:, -1] = 1.0
        return torch.where(least > self.reach[nearest], outlier, votes).float()


class UnitPrototypes(Prototypes):
    """Assignment by prototypes of unit-length representations."""

    @classmethod
    def blank(cls, prototypes: int, features: int, clusters: int) -> "UnitPrototypes":
        """Return prototypes of these sizes, with all values zero."""
        return cls(
            points=torch.zeros(prototypes, features, dtype=torch.int32),
            counts=torch.ones(prototypes, dtype=torch.float64),
            members=torch.zeros(prototypes, clusters, dtype=torch.float64),
            temperature=torch.zeros((), dtype=torch.float64),
        )

    def forward(self, representations: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        """Map representations to probabilities, in float32."""
        return super().forward(unit_rows(representations.double()))


def directions(steps: Float64[Tensor, "d c"]) -> Int32[Tensor, "d c"]:
    """Round directions to steps of 2^-16, after scaling their largest entry to 1."""
    return (steps / steps.abs().amax() * FINE).round().int()
