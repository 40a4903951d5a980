"""Closed-form gradients of losses, without a graph: FedMCC's eq. (14) to (17).

Eq. (14) and (15) are corrected, see `contrastive_gradients`.
"""

import torch
from torch import Tensor
from torch.nn import functional

from coterie.losses.tiled import on_sphere


def contrastive_gradients(
    u: Tensor, v: Tensor, temperature: float, include_positive: bool = False
) -> tuple[Tensor, Tensor]:
    """∂L/∂u and ∂L/∂v of `contrastive_loss`, eq. (15) and (16), both (n, d) as u and v.

    Two corrections to the paper: s'(u, w) = ∂s(u, w)/∂u = w/(‖u‖‖w‖) − s(u, w) u/‖u‖², where (14)
    has a wrong sign, and the factor 1/ξ_l, which the last term of (15) lacks:

        n τ ∂L/∂u_l = −s'(u_l, v_l) + Σ_{i≠l} [ (1/ξ_l + 1/ξ_i) e^{s(u_l, u_i)/τ} s'(u_l, u_i)
                                                + (1/ξ_l) e^{s(u_l, v_i)/τ} s'(u_l, v_i) ]
        n τ ∂L/∂v_l = −s'(v_l, u_l) + Σ_{i≠l} (1/ξ_i) e^{s(u_i, v_l)/τ} s'(v_l, u_i),

    plus the terms i = l across the views if the positive is included.
    """
    with torch.no_grad():
        unit_u, unit_v = functional.normalize(u, dim=1), functional.normalize(v, dim=1)
        among = (unit_u @ unit_u.T / temperature).fill_diagonal_(-torch.inf)
        across = unit_u @ unit_v.T / temperature
        if not include_positive:
            across.fill_diagonal_(-torch.inf)
        # Row l of the softmax is e^{s/τ}/ξ_l, first against u and then against v.
        among, across = torch.cat([among, across], dim=1).softmax(dim=1).chunk(2, dim=1)
        towards_u = (among + among.T) @ unit_u + across @ unit_v - unit_v
        towards_v = across.T @ unit_u - unit_u
        scale = 1.0 / (len(u) * temperature)
        return on_sphere(towards_u, u, unit_u, scale), on_sphere(towards_v, v, unit_v, scale)


def entropy_gradient(c: Tensor) -> Tensor:
    """∂H/∂c (n, k) of `cluster_entropy`, eq. (17): −(log p_l + H) sign(c_{r,l}) / ‖c‖₁."""
    with torch.no_grad():
        mass = c.abs().sum(dim=0)
        p = mass / mass.sum()
        log_p = p.clamp_min(torch.finfo(p.dtype).tiny).log()
        entropy = -(p * log_p).sum()
        return -(log_p + entropy) * c.sign() / c.abs().sum()
