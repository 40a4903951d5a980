"""The contrastive loss of CC, MCC and FedMCC between two views, over samples or over clusters."""

import torch
from torch import Tensor
from torch.nn import functional

from coterie.errors import ConfigError, ContractError


def contrastive_loss(
    u: Tensor, v: Tensor, temperature: float, include_positive: bool = False
) -> Tensor:
    """L(u, v; τ) of FedMCC, eq. (1) at the instance level.

        L = (1/n) Σ_i −log( exp(s(u_i, v_i)/τ) / ξ_i ),
        ξ_i = Σ_{j≠i} [ exp(s(u_i, u_j)/τ) + exp(s(u_i, v_j)/τ) ],

    with s the cosine similarity. It is not symmetric: the rows of u are the anchors.

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
    check_views(u, v, temperature)
    u, v = functional.normalize(u, dim=1), functional.normalize(v, dim=1)
    among, across = anchor_logits(u, v, temperature, include_positive)
    log_xi = torch.logaddexp(among.logsumexp(dim=1), across.logsumexp(dim=1))
    return (log_xi - (u * v).sum(dim=1) / temperature).mean()


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
    c_a: Tensor, c_b: Tensor, temperature: float, include_positive: bool = False
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


def anchor_logits(
    u: Tensor, v: Tensor, temperature: float, include_positive: bool
) -> tuple[Tensor, Tensor]:
    """The logits whose exponentials sum to ξ: s(u_i, u_j)/τ and s(u_i, v_j)/τ.

    Args:
        u: Rows of unit length (n, d), the anchors.
        v: Rows of unit length (n, d).
        temperature: τ.
        include_positive: Whether the second block keeps its diagonal.

    Returns:
        Two matrices (n, n); what ξ leaves out is −∞.
    """
    anchors = u / temperature
    among = (anchors @ u.T).fill_diagonal_(-torch.inf)
    across = anchors @ v.T
    return among, across if include_positive else across.fill_diagonal_(-torch.inf)


def check_views(u: Tensor, v: Tensor, temperature: float) -> None:
    """Refuse what the loss is not defined for.

    Raises:
        ConfigError: If the temperature is not positive.
        ContractError: If the shapes differ or there are fewer than two rows.
    """
    if not temperature > 0.0:
        raise ConfigError(f"temperature={temperature}: it must be positive; 0.5 is usual.")
    if u.shape != v.shape or u.ndim != 2:
        raise ContractError(
            f"The contrastive loss got views of shapes {tuple(u.shape)} and {tuple(v.shape)}; "
            "give it two matrices of one shape."
        )
    if len(u) < 2:
        raise ContractError(
            f"The contrastive loss got {len(u)} sample or cluster to tell apart; "
            "give it at least two."
        )
