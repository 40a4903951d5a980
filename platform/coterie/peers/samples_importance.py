"""How important a device's samples are to another: CF-CL's explicit importance sampling.

Wagle et al., "Unsupervised Federated Optimization at the Edge: D2D-Enabled Learning without
Labels", section III-B. All in float64, for a probability is compared with 0.
"""

import math

import torch
from torch import Tensor

from coterie.peers.clusters import maxima, sizes


def sample_importance(
    losses: Tensor, candidates: Tensor, reserve: Tensor, temperature: float
) -> Tensor:
    """The probability of each candidate, eq. (12): macro weight of its cluster × micro weight.

    Candidates and the receiver's reserve samples are clustered together. Clusters without
    candidates get nothing.

    Args:
        losses: Each candidate's mean loss as a negative of the reserve samples (n,).
        candidates: Each candidate's cluster, int64 (n,).
        reserve: Each reserve sample's cluster, int64 (m,).
        temperature: λ; 0 is uniform in a cluster, ∞ uniform over a cluster's maximisers.

    Returns:
        float64 (n,), which sum to 1.
    """
    macro = cluster_weights(candidates, reserve)
    return macro[candidates] * member_weights(losses, candidates, temperature)


def cluster_weights(candidates: Tensor, reserve: Tensor) -> Tensor:
    """Macro weights, eq. (8) and (9): A/(A + R) of the clusters' counts, normalised.

    Args:
        candidates: Each candidate's cluster, int64 (n,), n ≥ 1.
        reserve: Each reserve sample's cluster, int64 (m,).

    Returns:
        float64 (clusters,), which sum to 1.
    """
    count = int(torch.cat([candidates, reserve]).max()) + 1
    own, foreign = sizes(candidates, count), sizes(reserve, count)
    shares = own / (own + foreign).clamp_min(1)
    return shares / shares.sum()


def member_weights(losses: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Micro weights, eq. (11): the softmax of λ · loss over the candidates of a cluster.

    The paper's denominator counts the reserve samples too; then its probabilities do not sum to 1.

    Args:
        losses: Each candidate's loss (n,).
        labels: Each candidate's cluster, int64 (n,).
        temperature: λ, ∞ included.

    Returns:
        float64 (n,), which sum to 1 in each cluster.
    """
    count = int(labels.max()) + 1
    below = losses.double() - maxima(losses, labels, count)[labels]
    greedy = math.isinf(temperature)  # where ∞ · 0 would be no number
    weights = (below == 0).double() if greedy else (temperature * below).exp()
    totals = torch.zeros(count, dtype=torch.float64, device=losses.device)
    totals.index_add_(0, labels, weights)
    return weights / totals[labels]
