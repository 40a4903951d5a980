"""Losses of cosine similarities: SimSiam, BYOL, CCFC and MOON."""

from typing import Literal

from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import softplus

from coterie.errors import ContractError
from coterie.precision import unit_rows

Pairs = Literal["exclude_self", "all"]
"""Whether a sample is also paired with its own representation."""


def negative_cosine(p: Float[Tensor, "n d"], z: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
    """Return D(p, z) = −(1/n) Σ_i s(p_i, z_i) of SimSiam, eq. (1), with s the cosine similarity.

    Args:
        p: One view's predictions.
        z: The other view's projections of the same samples. No gradient reaches them: SimSiam's
            stop-gradient, BYOL's target.

    Returns:
        The loss, in [−1, 1].

    Raises:
        ContractError: If p and z are not two matrices of one shape.
    """
    _check(p, z)
    return -(unit_rows(p) * unit_rows(z.detach())).sum(dim=1).mean()


def normalised_error(p: Float[Tensor, "n d"], z: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
    """Return (1/n) Σ_i ‖p_i/‖p_i‖ − z_i/‖z_i‖‖² = 2 + 2 D(p, z) of BYOL, eq. (2), in [0, 4].

    Args:
        p: The online network's predictions of one view.
        z: The target network's projections of the other view; no gradient reaches them.

    Raises:
        ContractError: If p and z are not two matrices of one shape.
    """
    return 2.0 + 2.0 * negative_cosine(p, z)


def model_contrast(
    z: Float[Tensor, "n d"],
    near: Float[Tensor, "n d"],
    far: Float[Tensor, "n d"],
    temperature: float,
) -> Float[Tensor, ""]:
    """Return the model-contrastive loss of MOON, eq. (3), with s the cosine similarity.

        ℓ = −(1/n) Σ_i log( e^{s(z_i, near_i)/τ} / (e^{s(z_i, near_i)/τ} + e^{s(z_i, far_i)/τ}) )

    Args:
        z: Projections by the model in training.
        near: Projections of the same samples by the global model; no gradient reaches them.
        far: By the client's last model; no gradient reaches them.
        temperature: τ > 0.

    Returns:
        The loss, positive; log 2 with no gradient if `near` and `far` are equal.

    Raises:
        ContractError: If the three are not matrices of one shape.
    """
    _check(z, near)
    _check(z, far)
    unit, apart = unit_rows(z), unit_rows(far.detach()) - unit_rows(near.detach())
    return softplus((unit * apart).sum(dim=1) / temperature).mean()


def cluster_contrast(
    p: Float[Tensor, "n d"],
    z: Float[Tensor, "n d"],
    labels: Int64[Tensor, "n"],
    clusters: int,
    pairs: Pairs,
) -> Float[Tensor, ""]:
    """Return the cluster-contrastive loss of CCFC, eq. (1) and (2), in O(n d).

        D(x_i) = −1/(n_c − 1) Σ_{j≠i} cos(p_i, stopgrad z_j)

    over the samples j of sample i's cluster in the batch; the mean over a cluster's samples, then
    over the clusters with two samples or more, all with equal weight. The sum over j is
    p̂_i · (Σ_j ẑ_j − ẑ_i), and Σ_j ẑ_j is one vector per cluster: no n × n matrix.

    Args:
        p: Predictions.
        z: Representations, constants.
        labels: Each sample's cluster, below `clusters`.
        clusters: k.
        pairs: "exclude_self" is eq. (1); "all" also counts the pair (i, i) and divides by n_c, as
            the authors' code does.

    Returns:
        The loss, in [−1, 1]; 0 with no gradient if no cluster has two samples.

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
    # The weight of a pair: one over its sample's partners, its cluster's samples and the clusters.
    share = paired / (partners * counts).clamp_min(1) / paired.sum().clamp_min(1)
    return -((unit_p * others).sum(dim=1) * share[labels]).sum()


def _check(p: Tensor, z: Tensor) -> None:
    if p.shape != z.shape or p.ndim != 2:
        raise ContractError(
            f"A cosine loss got shapes {tuple(p.shape)} and {tuple(z.shape)}; "
            "give it two matrices of one shape."
        )
