"""Importance of a device's samples to another device: CF-CL's explicit importance sampling.

CF-CL, section III-B. Computed in float64, since probabilities are compared with 0.
"""

import math

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from coterie.peers.clusters import maxima, sizes


def sample_importance(
    losses: Float[Tensor, "n"],
    candidates: Int64[Tensor, "n"],
    reserve: Int64[Tensor, "m"],
    temperature: float,
) -> Float64[Tensor, "n"]:
    """Return the probability of each candidate, eq. (12): cluster weight × micro weight.

    Candidates and the receiver's reserve samples are clustered together. Clusters without
    candidates have weight 0.

    Args:
        losses: Each candidate's mean loss as a negative of the reserve samples.
        candidates: Each candidate's cluster.
        reserve: Each reserve sample's cluster.
        temperature: λ; 0 is uniform in a cluster, ∞ uniform over a cluster's maximisers.

    Returns:
        Probabilities, which sum to 1.
    """
    macro = cluster_weights(candidates, reserve)
    return macro[candidates] * member_weights(losses, candidates, temperature)


def cluster_weights(
    candidates: Int64[Tensor, "n"], reserve: Int64[Tensor, "m"]
) -> Float64[Tensor, "k"]:
    """Return macro weights, eq. (8) and (9): A/(A + R) of the clusters' counts, normalised.

    Args:
        candidates: Each candidate's cluster, n ≥ 1.
        reserve: Each reserve sample's cluster.

    Returns:
        Weights, which sum to 1.
    """
    count = int(torch.cat([candidates, reserve]).max()) + 1
    own, foreign = sizes(candidates, count), sizes(reserve, count)
    shares = own / (own + foreign).clamp_min(1)
    return shares / shares.sum()


def member_weights(
    losses: Float[Tensor, "n"], labels: Int64[Tensor, "n"], temperature: float
) -> Float64[Tensor, "n"]:
    """Return micro weights, eq. (11): the softmax of λ · loss over the candidates of a cluster.

    The paper's denominator also counts the reserve samples, so that its probabilities do not sum
    to 1.

    Args:
        losses: Each candidate's loss.
        labels: Each candidate's cluster.
        temperature: λ, ∞ included.

    Returns:
        Weights, which sum to 1 in each cluster.
    """
    count = int(labels.max()) + 1
    below = losses.double() - maxima(losses, labels, count)[labels]
    greedy = math.isinf(temperature)  # ∞ · 0 would be NaN
    weights = (below == 0).double() if greedy else (temperature * below).exp()
    totals = torch.zeros(count, dtype=torch.float64, device=losses.device)
    totals.index_add_(0, labels, weights)
    return weights / totals[labels]
