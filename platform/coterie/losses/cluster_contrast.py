"""The losses of CCFC: attraction within a cluster, and to another network's predictions."""

from typing import Literal

from torch import Tensor

from coterie.errors import ContractError
from coterie.precision import unit_rows

Pairs = Literal["exclude_self", "all"]
"""Whether a sample is compared with its own representation too."""


def cluster_contrast(p: Tensor, z: Tensor, labels: Tensor, clusters: int, pairs: Pairs) -> Tensor:
    """Cluster-contrastive loss of CCFC, eq. (1) and (2), in O(n d).

        D(x_i) = −1/(n_c − 1) Σ_{j≠i} cos(p_i, stopgrad z_j)

    over the samples j of sample i's cluster in the batch; the mean over a cluster's samples, then
    over the clusters that have two samples or more, so that these weigh the same. The sum over j is
    p̂_i · (Σ_j ẑ_j − ẑ_i), and Σ_j ẑ_j is one vector a cluster: no n × n matrix.

    Args:
        p: Predictions (n, d).
        z: Representations (n, d), constants.
        labels: Each sample's cluster, int64 (n,), below `clusters`.
        clusters: k.
        pairs: "exclude_self" is eq. (1); "all" also counts the pair (i, i) and divides by n_c, as
            the authors' code does.

    Returns:
        The loss in [−1, 1], a scalar; 0 with no gradient if no cluster has two samples.

    Raises:
        ContractError: If the shapes do not fit.
    """
    _check(p, z)
    if labels.shape != p.shape[:1]:
        raise ContractError(
            f"The cluster-contrastive loss got labels of shape {tuple(labels.shape)} for {len(p)} "
            "samples; give it one cluster per sample."
        )
    unit_p, unit_z = unit_rows(p), unit_rows(z.detach())
    counts = unit_p.new_zeros(clusters).index_add(0, labels, unit_p.new_ones(len(p)))
    sums = unit_z.new_zeros(clusters, z.shape[1]).index_add(0, labels, unit_z)
    others = sums[labels] if pairs == "all" else sums[labels] - unit_z
    paired = (counts >= 2).to(unit_p.dtype)
    partners = counts if pairs == "all" else counts - 1
    # Each pair counts by its sample's partners, samples in its cluster and such clusters.
    share = paired / (partners * counts).clamp_min(1) / paired.sum().clamp_min(1)
    return -((unit_p * others).sum(dim=1) * share[labels]).sum()


def _check(p: Tensor, z: Tensor) -> None:
    if p.shape != z.shape or p.ndim != 2:
        raise ContractError(
            f"A cosine loss got predictions of shape {tuple(p.shape)} for {tuple(z.shape)}; "
            "give it two matrices of one shape."
        )
