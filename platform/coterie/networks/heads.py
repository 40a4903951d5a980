"""Heads: small networks on top of representations."""

from typing import Literal

import torch
from torch import Tensor, nn

from coterie.clustering.fuzzy import memberships
from coterie.precision import unit_rows, widened

ProjectorNorm = Literal["none", "hidden", "all"]
"""BatchNorm in a projector: nowhere, after the hidden layer, or also after the last layer."""


class Projector(nn.Module):
    """Projection head for the comparison of instances (CC's instance head).

    Layers: Linear, BatchNorm unless `norm` is `none`, ReLU, Linear; with `norm=all` a BatchNorm
    without parameters follows, as in SimSiam. The output has no unit length. With a narrow hidden
    layer it predicts one view's projection from the other's (BYOL, SimSiam).
    """

    def __init__(
        self, inputs: int, hidden: int, outputs: int, norm: ProjectorNorm = "none"
    ) -> None:
        super().__init__()
        # BatchNorm has its own shift, so the first layer needs no bias.
        layers: list[nn.Module] = [nn.Linear(inputs, hidden, bias=norm == "none")]
        if norm != "none":
            layers.append(nn.BatchNorm1d(hidden))
        layers += [nn.ReLU(), nn.Linear(hidden, outputs)]
        if norm == "all":
            layers.append(nn.BatchNorm1d(outputs, affine=False))
        self.layers = nn.Sequential(*layers)

    def forward(self, representations: Tensor) -> Tensor:
        """Map (n, inputs) to (n, outputs)."""
        outputs: Tensor = self.layers(representations)
        return outputs


class ClusterHeads(nn.Module):
    """Several parallel cluster heads, one of which is selected later."""

    def __init__(self, inputs: int, hidden: int, clusters: int, count: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(ClusterHead(inputs, hidden, clusters) for _ in range(count))

    def forward(self, representations: Tensor) -> Tensor:
        """Map (n, inputs) to probabilities (heads, n, clusters)."""
        return torch.stack([head(representations) for head in self.heads])


class ClusterHead(Projector):
    """Soft assignment to clusters (CC's cluster head): Linear, ReLU, Linear, softmax.

    Rows of the output (n, clusters) are non-negative and sum to one.
    """

    def forward(self, representations: Tensor) -> Tensor:
        """Map (n, inputs) to probabilities (n, clusters)."""
        return widened(super().forward(representations)).softmax(dim=1)


class Centroids(nn.Module):
    """Assignment to the nearest centroid, after k-means on an encoder's representations.

    Probabilities are the softmax over the centroids of −‖h − c‖², as for a mixture of equal
    Gaussians of variance ½ per dimension. The nearest centroid is the likeliest, also where all are
    near: probabilities are in float64. Distances are computed from differences, so a sample's bits
    do not depend on its batch.

    Args:
        centroids: (clusters, features).
    """

    centroids: Tensor

    def __init__(self, centroids: Tensor) -> None:
        super().__init__()
        self.register_buffer("centroids", centroids.to(torch.float32))

    def forward(self, representations: Tensor) -> Tensor:
        """Map (n, features) to probabilities (n, clusters)."""
        exact = "donot_use_mm_for_euclid_dist"
        h, centroids = representations.double(), self.centroids.double()
        distances = torch.cdist(h, centroids, compute_mode=exact)
        return (-distances.square()).softmax(dim=1)


class UnitLength(nn.Module):
    """Normalisation to unit length, where distances are functions of cosines.

    Schroff et al., "FaceNet: A Unified Embedding for Face Recognition and Clustering", section 3.
    """

    def forward(self, representations: Tensor) -> Tensor:
        """Map (n, d) to (n, d), in float32 or wider."""
        return unit_rows(representations)


class FuzzyCentroids(nn.Module):
    """Assignment by fuzzy c-means: probabilities are the memberships.

    Args:
        centroids: (clusters, features).
        fuzziness: m > 1.
    """

    centroids: Tensor

    def __init__(self, centroids: Tensor, fuzziness: float) -> None:
        super().__init__()
        self.fuzziness = fuzziness
        self.register_buffer("centroids", centroids.to(torch.float32))

    def forward(self, representations: Tensor) -> Tensor:
        """Map (n, features) to probabilities (n, clusters)."""
        return memberships(representations, self.centroids, self.fuzziness).float()
