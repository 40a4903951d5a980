"""The contrastive loss by its formula, and the check of views that its other forms share."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from coterie.errors import ConfigError, ContractError
from coterie.precision import in_float32


@in_float32
def plain_contrastive_loss(
    u: Float[Tensor, "n d"],
    v: Float[Tensor, "n d"],
    temperature: float,
    include_positive: bool = False,
) -> Float[Tensor, ""]:
    """Return `contrastive_loss` by its formula, with n × n similarities: the reference."""
    check_views(u, v, temperature)
    u, v = functional.normalize(u, dim=1), functional.normalize(v, dim=1)
    anchors = u / temperature
    # Not `fill_diagonal_`, which vmap does not support.
    same = torch.eye(len(u), dtype=torch.bool, device=u.device)
    among, across = (anchors @ u.T).masked_fill(same, -torch.inf), anchors @ v.T
    across = across if include_positive else across.masked_fill(same, -torch.inf)
    log_xi = torch.logaddexp(among.logsumexp(dim=1), across.logsumexp(dim=1))
    return (log_xi - (u * v).sum(dim=1) / temperature).mean()


def check_views(u: Tensor, v: Tensor, temperature: float) -> None:
    """Refuse views and temperatures for which the loss is not defined.

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
