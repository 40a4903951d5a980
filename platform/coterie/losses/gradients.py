"""Closed-form gradients of the contrastive loss, without a graph: FedMCC's eq. (14) to (16).

The equations are corrected, see `contrastive_gradients`.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from coterie.losses.plain import anchor_logits, check_views

_SMALLEST_NORM = 1e-12  # minimum divisor in functional.normalize


@torch.no_grad()
def contrastive_gradients(
    u: Float[Tensor, "n d"],
    v: Float[Tensor, "n d"],
    temperature: float,
    include_positive: bool = False,
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d"]]:
    """Return ∂L/∂u and ∂L/∂v of `contrastive_loss`, eq. (15) and (16).

    Two corrections to the paper: s'(u, w) = ∂s(u, w)/∂u = w/(‖u‖‖w‖) − s(u, w) u/‖u‖², where (14)
    has a wrong sign, and the factor 1/ξ_l, which the last term of (15) lacks:

        n τ ∂L/∂u_l = −s'(u_l, v_l) + Σ_{i≠l} [ (1/ξ_l + 1/ξ_i) e^{s(u_l, u_i)/τ} s'(u_l, u_i)
                                                + (1/ξ_l) e^{s(u_l, v_i)/τ} s'(u_l, v_i) ]
        n τ ∂L/∂v_l = −s'(v_l, u_l) + Σ_{i≠l} (1/ξ_i) e^{s(u_i, v_l)/τ} s'(v_l, u_i),

    plus the terms i = l across the views if the positive is included.

    Args:
        u: One view's projections, n ≥ 2.
        v: The other view's.
        temperature: τ > 0.
        include_positive: As in `contrastive_loss`.

    Raises:
        ConfigError: If τ is not positive.
        ContractError: If the shapes differ or there are fewer than two rows.
    """
    check_views(u, v, temperature)
    unit_u, unit_v = functional.normalize(u, dim=1), functional.normalize(v, dim=1)
    logits = torch.cat(anchor_logits(unit_u, unit_v, temperature, include_positive), dim=1)
    # Row l of the softmax is e^{s/τ}/ξ_l, first against u and then against v.
    among, across = logits.softmax(dim=1).chunk(2, dim=1)
    towards_u = (among + among.T) @ unit_u + across @ unit_v - unit_v
    towards_v = across.T @ unit_u - unit_u
    scale = 1.0 / (len(u) * temperature)
    return on_sphere(towards_u, u, unit_u, scale), on_sphere(towards_v, v, unit_v, scale)


def on_sphere(
    direction: Float[Tensor, "n d"],
    rows: Float[Tensor, "n d"],
    unit: Float[Tensor, "n d"],
    scale: float | Float[Tensor, ""],
) -> Float[Tensor, "n d"]:
    """Apply the derivative of the cosine to a vector g: (g − ⟨g, û⟩ û) / ‖u‖, times `scale`."""
    tangent = direction - (direction * unit).sum(dim=1, keepdim=True) * unit
    norm: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp_min(_SMALLEST_NORM)
    return scale * tangent / norm
