"""The contrastive loss of CC, MCC and FedMCC between two views, over samples or over clusters."""

from torch import Tensor

from coterie.losses.plain import plain_contrastive_loss
from coterie.losses.tiled import tiled_contrastive_loss
from coterie.precision import in_float32

PLAIN_UP_TO = 2048
"""Rows whose n × n similarities, 16 MB in float32, are computed at once; more go in tiles."""


def contrastive_loss(
    u: Tensor,
    v: Tensor,
    temperature: float,
    include_positive: bool = False,
) -> Tensor:
    """L(u, v; τ) of FedMCC, eq. (1) at the instance level.

        L = (1/n) Σ_i −log( exp(s(u_i, v_i)/τ) / ξ_i ),
        ξ_i = Σ_{j≠i} [ exp(s(u_i, u_j)/τ) + exp(s(u_i, v_j)/τ) ],

    with s the cosine similarity. It is not symmetric: the rows of u are the anchors. Above
    `PLAIN_UP_TO` rows the gradient is that of the corrected eq. (15) and (16), in tiles and without
    a graph, which then needs less time and memory than autograd; both agree to rounding.

    Args:
        u: One view's projections (n, d), n ≥ 2.
        v: The other view's (n, d), row i of both being sample i.
        temperature: τ > 0.
        include_positive: Whether ξ_i also holds exp(s(u_i, v_i)/τ), as in CC's published code.

    Returns:
        The loss, a scalar.

    Raises:
        ConfigError: If τ is not positive.
        ContractError: If the shapes differ or there are fewer than two rows.
    """
    form = tiled_contrastive_loss if len(u) > PLAIN_UP_TO else plain_contrastive_loss
    return form(u, v, temperature, include_positive)


@in_float32
def nt_xent(u: Tensor, v: Tensor, temperature: float) -> Tensor:
    """Symmetric loss with the positive, ½ [L(u, v; τ) + L(v, u; τ)]: SimCLR's and CC's code.

    The same as the cross-entropy over the 2n views with each view's own similarity left out.

    Args:
        u: One view's projections (n, d), n ≥ 2.
        v: The other view's (n, d).
        temperature: τ > 0.

    Returns:
        The loss, a scalar.
    """
    forward = contrastive_loss(u, v, temperature, include_positive=True)
    return 0.5 * (forward + contrastive_loss(v, u, temperature, include_positive=True))


def cluster_contrastive_loss(
    c_a: Tensor,
    c_b: Tensor,
    temperature: float,
    include_positive: bool = False,
) -> Tensor:
    """L over the columns of two soft-assignment matrices, FedMCC's cluster level, eq. (13).

    A cluster is represented by its probabilities over the batch, so "n" in L is their number.

    Args:
        c_a: One view's probabilities (n, clusters), at least two clusters.
        c_b: The other view's (n, clusters).
        temperature: τ > 0.
        include_positive: As in `contrastive_loss`.

    Returns:
        The loss, a scalar.
    """
    return contrastive_loss(c_a.T, c_b.T, temperature, include_positive)
