"""How important a device's embeddings are to another: CF-CL's implicit importance sampling.

Wagle et al., "Unsupervised Federated Optimization at the Edge: D2D-Enabled Learning without
Labels", section III-C2. All in float64, for a probability is compared with 0.
"""

from typing import Literal

import torch
from torch import Tensor

from coterie.peers.clusters import maxima, means, sizes, squared_distances

_ROUNDING = 1e-12
"""Relative to a cluster's radius: points within this of the farthest count as the farthest."""

_SAME = 1e-6
"""Relative to the largest overlap: a deviation below this is rounding of float32 embeddings."""

Score = Literal["intent", "literal"]
"""Whether nearness to the centroid and to the reserve adds to an embedding's score, as the text
says, or takes from it, as eq. (16) is printed."""


def embedding_importance(
    candidates: Tensor,
    labels: Tensor,
    reserve: Tensor,
    reserve_labels: Tensor,
    *,
    form: Score,
    mean: float = 0.0,
    deviation: float | None = None,
) -> Tensor:
    """The probability of each candidate embedding, eq. (22): macro × micro weight.

    Micro, eq. (21): the score's share of its cluster's; uniform where all of these vanish. Macro,
    eq. (17) to (20): the cluster's mean score times the normal density of its overlap b(h); by the
    clusters' sizes where all of these vanish.

    Args:
        candidates: The transmitter's embeddings (n, d), n ≥ 1.
        labels: Each one's cluster, int64 (n,).
        reserve: The receiver's reserve embeddings (m, d), m ≥ 1.
        reserve_labels: Each one's cluster, int64 (m,).
        form: See `Score`.
        mean: μ̂ of the normal density.
        deviation: σ̂; None for the standard deviation of b(h) over the clusters.

    Returns:
        float64 (n,), which sum to 1.
    """
    count = int(labels.max()) + 1
    members = sizes(labels, count)
    scores = embedding_scores(candidates, labels, reserve, form)
    mean_scores = means(scores, labels, count)
    overlaps = cluster_overlaps(candidates, labels, reserve, reserve_labels)
    macro = _macro(mean_scores, members, overlaps, mean, deviation)
    totals = mean_scores * members
    micro = torch.where(totals[labels] > 0, scores / totals[labels], 1 / members[labels])
    return macro[labels] * micro


def embedding_scores(candidates: Tensor, labels: Tensor, reserve: Tensor, form: Score) -> Tensor:
    """Each embedding's score, eq. (16): non-negative, float64 (n,).

    With r = ‖z − μ_h‖², "literal" is r · Σ_z' ‖z' − z‖². The text asks for the opposite, and
    "intent" is (max_h r − r) · Σ_z' (D² − ‖z' − z‖²), D² the largest distance of all.

    Args:
        candidates: Embeddings z (n, d).
        labels: Each one's cluster h, int64 (n,).
        reserve: Embeddings z' (m, d).
        form: See `Score`.
    """
    count = int(labels.max()) + 1
    centroids = means(candidates, labels, count)
    radii = (candidates.double() - centroids[labels]).square().sum(dim=1)
    distances = squared_distances(candidates, reserve)
    if form == "literal":
        return radii * distances.sum(dim=1)
    edges = maxima(radii, labels, count)[labels]
    # Both points of a pair are equally far from its centroid, but for rounding.
    inwards = torch.where(radii < edges * (1 - _ROUNDING), edges - radii, 0.0)
    return inwards * (distances.max() - distances).sum(dim=1)


def cluster_overlaps(
    candidates: Tensor, labels: Tensor, reserve: Tensor, reserve_labels: Tensor
) -> Tensor:
    """b(h), eq. (19): how much farther a cluster is from the receiver's than from the other own.

    The mean squared distance of its centroid to the reserve's centroids, less that to the other
    local centroids (0 if there is no other).

    Returns:
        float64 (clusters,); of clusters without members it means nothing.
    """
    local, here = _centroids(candidates, labels)
    foreign, there = _centroids(reserve, reserve_labels)
    to_reserve = squared_distances(local, foreign[there]).mean(dim=1)
    others = max(1, int(here.sum()) - 1)
    return to_reserve - squared_distances(local, local[here]).sum(dim=1) / others


def _centroids(points: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Centroids (clusters, d), and which of the clusters have members."""
    count = int(labels.max()) + 1
    return means(points, labels, count), sizes(labels, count) > 0


def _macro(
    mean_scores: Tensor, members: Tensor, overlaps: Tensor, mean: float, deviation: float | None
) -> Tensor:
    """Mean score × normal density, normalised; in logarithms, for densities underflow."""
    here = members > 0
    spread = _spread(overlaps[here]) if deviation is None else deviation
    logs = mean_scores.log()
    if spread > 0:  # without any spread all densities are the same
        logs = logs - (overlaps - mean).square() / (2 * spread**2)
    logs = torch.where(here, logs, -torch.inf)
    if bool(torch.isneginf(logs).all()):
        return members / members.sum()
    return logs.softmax(dim=0)


def _spread(overlaps: Tensor) -> float:
    """σ̂, their standard deviation; 0 if they differ by rounding alone, which it would magnify."""
    spread = float(overlaps.std(correction=0))
    return spread if spread > _SAME * float(overlaps.abs().max()) else 0.0
