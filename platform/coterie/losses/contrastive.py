"""The contrastive loss of CC, MCC and FedMCC between two views, over samples or clusters."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from coterie.losses.plain import check_views, plain_contrastive_loss
from coterie.losses.tiled import tiled_contrastive_loss
from coterie.precision import in_float32

PLAIN_UP_TO = 2048
"""Largest n whose n × n similarities, 16 MB in float32, are held at once; above it, tiles."""


def contrastive_loss(
    u: Float[Tensor, "n d"],
    v: Float[Tensor, "n d"],
    temperature: float,
    include_positive: bool = False,
) -> Float[Tensor, ""]:
    """Return L(u, v; τ) of FedMCC, eq. (1) at the instance level.

        L = (1/n) Σ_i −log( exp(s(u_i, v_i)/τ) / ξ_i ),
        ξ_i = Σ_{j≠i} [ exp(s(u_i, u_j)/τ) + exp(s(u_i, v_j)/τ) ],

    with s the cosine similarity. The loss is not symmetric: the rows of u are the anchors. Above
    `PLAIN_UP_TO` rows the gradient is that of the corrected eq. (15) and (16), in tiles and without
    a graph, which then needs less time and memory than autograd; both agree to rounding.

    Args:
        u: One view's projections, n ≥ 2.
        v: The other view's; row i of both is sample i.
        temperature: τ > 0.
        include_positive: Whether ξ_i also holds exp(s(u_i, v_i)/τ), as in CC's published code.

    Raises:
        ConfigError: If τ is not positive.
        ContractError: If the shapes differ or there are fewer than two rows.
    """
    form = tiled_contrastive_loss if len(u) > PLAIN_UP_TO else plain_contrastive_loss
    return form(u, v, temperature, include_positive)


@in_float32
def nt_xent(
    u: Float[Tensor, "n d"], v: Float[Tensor, "n d"], temperature: float
) -> Float[Tensor, ""]:
    """Return ½ [L(u, v; τ) + L(v, u; τ)] with the positive pair in the sum: SimCLR's and CC's code.

    Equal to the cross-entropy over the 2n views without each view's similarity to itself.

    Args:
        u: One view's projections, n ≥ 2.
        v: The other view's.
        temperature: τ > 0.
    """
    forward = contrastive_loss(u, v, temperature, include_positive=True)
    return 0.5 * (forward + contrastive_loss(v, u, temperature, include_positive=True))


@in_float32
def nt_xent_against(
    u: Float[Tensor, "n d"],
    v: Float[Tensor, "n d"],
    others: Float[Tensor, "m d"],
    temperature: float,
) -> Float[Tensor, ""]:
    """Return `nt_xent` with more negatives for all 2n anchors: FedCA's dictionary of other clients.

        ℓ_i = −log( exp(s(z_i, z_j)/τ) / (Σ_{k≠i} exp(s(z_i, z_k)/τ) + Σ_d exp(s(z_i, w_d)/τ)) )

    over the 2n views z, j the partner of i, and the others w; the mean over i.

    Args:
        u: One view's projections, n ≥ 2.
        v: The other view's.
        others: The negatives, constants; without any the loss is `nt_xent`.
        temperature: τ > 0.
    """
    if not len(others):
        return nt_xent(u, v, temperature)
    check_views(u, v, temperature)
    z = functional.normalize(torch.cat([u, v]), dim=1)
    among = (z @ z.T / temperature).fill_diagonal_(-torch.inf)
    against = z @ functional.normalize(others.detach(), dim=1).T / temperature
    positives = (z * z.roll(len(u), dims=0)).sum(dim=1) / temperature
    return (torch.cat([among, against], dim=1).logsumexp(dim=1) - positives).mean()


def cluster_contrastive_loss(
    c_a: Float[Tensor, "n k"],
    c_b: Float[Tensor, "n k"],
    temperature: float,
    include_positive: bool = False,
) -> Float[Tensor, ""]:
    """Return L over the columns of two soft-assignment matrices, FedMCC's cluster level, eq. (13).

    A cluster is represented by its probabilities over the batch, so n in L is k here.

    Args:
        c_a: One view's probabilities, k ≥ 2.
        c_b: The other view's.
        temperature: τ > 0.
        include_positive: As in `contrastive_loss`.
    """
    return contrastive_loss(c_a.T, c_b.T, temperature, include_positive)
