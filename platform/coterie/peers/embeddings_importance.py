"""Importance of a device's embeddings to another device: CF-CL's implicit importance sampling.

CF-CL, section III-C2. Computed in float64, since probabilities are compared with 0.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from coterie.peers.clusters import maxima, means, sizes, squared_distances

_ROUNDING = 1e-12
"""Tolerance relative to a cluster's radius: points this close to the farthest count as farthest."""

_SAME = 1e-6
"""Tolerance relative to the largest overlap: a smaller deviation is float32 rounding error."""

Score = Literal["intent", "literal"]
"""Whether nearness to the centroid and to the reserve raises an embedding's score, as the paper's
text says ("intent"), or lowers it, as eq. (16) is printed ("literal")."""


def embedding_importance(
    candidates: Float[Tensor, "n d"],
    labels: Int64[Tensor, "n"],
    reserve: Float[Tensor, "m d"],
    reserve_labels: Int64[Tensor, "m"],
    *,
    form: Score,
    mean: float = 0.0,
    deviation: float | None = None,
) -> Float64[Tensor, "n"]:
    """Return the probability of each candidate embedding, eq. (22): macro weight × micro weight.

    Micro, eq. (21): the score's share of its cluster's scores; uniform if these are all 0. Macro,
    eq. (17) to (20): the cluster's mean score times the normal density of its overlap b(h);
    proportional to the cluster sizes if these products are all 0.

    Args:
        candidates: The transmitter's embeddings, n ≥ 1.
        labels: Each candidate's cluster.
        reserve: The receiver's reserve embeddings, m ≥ 1.
        reserve_labels: Each reserve embedding's cluster.
        form: See `Score`.
        mean: μ̂ of the normal density.
        deviation: σ̂; None for the standard deviation of b(h) over the clusters.

    Returns:
        Probabilities, which sum to 1.
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


def embedding_scores(
    candidates: Float[Tensor, "n d"],
    labels: Int64[Tensor, "n"],
    reserve: Float[Tensor, "m d"],
    form: Score,
) -> Float64[Tensor, "n"]:
    """Return the score of each embedding, eq. (16): non-negative.

    With r = ‖z − μ_h‖², "literal" is r · Σ_z' ‖z' − z‖². The text describes the opposite:
    "intent" is (max_h r − r) · Σ_z' (D² − ‖z' − z‖²), with D² the largest squared distance.

    Args:
        candidates: Embeddings z.
        labels: Each embedding's cluster h.
        reserve: Embeddings z'.
        form: See `Score`.
    """
    count = int(labels.max()) + 1
    centroids = means(candidates, labels, count)
    radii = (candidates.double() - centroids[labels]).square().sum(dim=1)
    distances = squared_distances(candidates, reserve)
    if form == "literal":
        return radii * distances.sum(dim=1)
    edges = maxima(radii, labels, count)[labels]
    # Both points of a cluster of two are equally far from its centroid, up to rounding.
    inwards = torch.where(radii < edges * (1 - _ROUNDING), edges - radii, 0.0)
    return inwards * (distances.max() - distances).sum(dim=1)


def cluster_overlaps(
    candidates: Float[Tensor, "n d"],
    labels: Int64[Tensor, "n"],
    reserve: Float[Tensor, "m d"],
    reserve_labels: Int64[Tensor, "m"],
) -> Float64[Tensor, "k"]:
    """Return b(h), eq. (19): a cluster's distance to the receiver's clusters, less that to its own.

    The mean squared distance of its centroid to the reserve's centroids, less that to the other
    local centroids (0 if there is no other). Undefined for clusters without members.
    """
    local, here = _centroids(candidates, labels)
    foreign, there = _centroids(reserve, reserve_labels)
    to_reserve = squared_distances(local, foreign[there]).mean(dim=1)
    others = max(1, int(here.sum()) - 1)
    return to_reserve - squared_distances(local, local[here]).sum(dim=1) / others


def _centroids(
    points: Float[Tensor, "n d"], labels: Int64[Tensor, "n"]
) -> tuple[Float64[Tensor, "k d"], Bool[Tensor, "k"]]:
    """Return the centroids, and which of the clusters have members."""
    count = int(labels.max()) + 1
    return means(points, labels, count), sizes(labels, count) > 0


def _macro(
    mean_scores: Float64[Tensor, "k"],
    members: Float64[Tensor, "k"],
    overlaps: Float64[Tensor, "k"],
    mean: float,
    deviation: float | None,
) -> Float64[Tensor, "k"]:
    """Return mean score × normal density, normalised; in logarithms, since densities underflow."""
    here = members > 0
    spread = _spread(overlaps[here]) if deviation is None else deviation
    logs = mean_scores.log()
    if spread > 0:  # without spread all densities are equal
        logs = logs - (overlaps - mean).square() / (2 * spread**2)
    logs = torch.where(here, logs, -torch.inf)
    if bool(torch.isneginf(logs).all()):
        return members / members.sum()
    return logs.softmax(dim=0)


def _spread(overlaps: Float64[Tensor, "k"]) -> float:
    """Return the standard deviation σ̂, but 0 if the overlaps differ only by rounding."""
    spread = float(overlaps.std(correction=0))
    return spread if spread > _SAME * float(overlaps.abs().max()) else 0.0
