"""Equal clusters for a sample and its neighbour.

Van Gansbeke et al., "SCAN: Learning to Classify Images without Labels" (ECCV 2020), section 2.2.
"""

from jaxtyping import Float
from torch import Tensor

from coterie.precision import in_float32


@in_float32
def neighbour_consistency(
    anchors: Float[Tensor, "n k"], neighbours: Float[Tensor, "n k"]
) -> Float[Tensor, ""]:
    """Return −(1/n) Σ_i log ⟨p_i, q_i⟩, the first term of SCAN's eq. (2), with p and q softmaxes.

    It is computed from logarithms, so that it is finite where both are sure of other clusters.

    Args:
        anchors: Logits of the samples over the clusters.
        neighbours: Logits of one neighbour of each.

    Returns:
        The term, at least 0; 0 where both are sure of the same cluster.
    """
    logs = anchors.log_softmax(dim=1) + neighbours.log_softmax(dim=1)
    return -logs.logsumexp(dim=1).mean()
