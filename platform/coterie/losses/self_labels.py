"""Clusters of which a network is sure, as labels for its own training.

Van Gansbeke et al., "SCAN: Learning to Classify Images without Labels" (ECCV 2020), section 2.3.
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from coterie.precision import in_float32, widened

UNSURE = -1
"""The label of a sample that trains nothing."""


def self_labels(logits: Float[Tensor, "n k"], threshold: float) -> Int64[Tensor, "n"]:
    """Return each sample's most probable cluster, or `UNSURE` where it is not above the threshold.

    Args:
        logits: Over the clusters.
        threshold: A probability.
    """
    probability, labels = widened(logits.detach()).softmax(dim=1).max(dim=1)
    return labels.masked_fill(probability <= threshold, UNSURE)


@in_float32
def balanced_cross_entropy(
    logits: Float[Tensor, "n k"], labels: Int64[Tensor, "n"]
) -> Float[Tensor, ""]:
    """Return the mean over the clusters among the labels of the cross-entropy of their samples.

    So the samples weigh inversely to the size of their cluster in the batch, as in SCAN's code.

    Args:
        logits: Over the clusters.
        labels: Clusters, or `UNSURE`.

    Returns:
        The loss; where no sample has a label 0, which reaches no parameter: an optimiser that got
        gradients of 0 would still take a step, by its momentum and weight decay.
    """
    if (labels == UNSURE).all():
        return torch.zeros((), dtype=logits.dtype, device=logits.device, requires_grad=True)
    sizes = one_hot(labels[labels != UNSURE], logits.shape[1]).sum(dim=0)
    weights = sizes.clamp_min(1).to(logits).reciprocal()
    return cross_entropy(logits, labels, weights, ignore_index=UNSURE)
