"""FedX's relational loss: both views should agree in their similarities to other samples."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from coterie.errors import ContractError
from coterie.precision import in_float32, unit_rows


@in_float32
def relational_loss(
    u: Float[Tensor, "n d"],
    v: Float[Tensor, "n d"],
    others: Float[Tensor, "m d"],
    temperature: float,
    target_temperature: float,
) -> Float[Tensor, ""]:
    """Return the divergence of two views' similarities to other samples, eq. (5) of FedX.

        L = ½ KL(q ‖ p_u) + ½ KL(q ‖ p_v),   p_x = softmax(s(x, others)/τ),
        q = ½ [softmax(s(u, others)/τ') + softmax(s(v, others)/τ')],

    the mean over samples, with s the cosine similarity.

    Args:
        u: One view's projections or predictions.
        v: The other view's.
        others: Projections of other samples, m ≥ 1.
        temperature: τ > 0 of the views.
        target_temperature: τ' > 0 of their mean.

    Returns:
        The loss; 0 if both views are equal and τ' = τ.

    Raises:
        ContractError: If the widths differ or the views' shapes do.
    """
    if u.shape != v.shape or u.ndim != 2 or others.ndim != 2 or others.shape[1] != u.shape[1]:
        shapes = ", ".join(str(tuple(x.shape)) for x in (u, v, others))
        raise ContractError(
            f"The relational loss got matrices of shapes {shapes}; "
            "give it two views of one shape and others of their width."
        )
    unit = unit_rows(others)
    similar = torch.stack([unit_rows(x) @ unit.T for x in (u, v)])
    target = (similar / target_temperature).softmax(dim=2).mean(dim=0)
    logs = (similar / temperature).log_softmax(dim=2)
    divergences = functional.kl_div(logs, target.expand_as(logs), reduction="sum")
    return divergences / (2 * len(u))
