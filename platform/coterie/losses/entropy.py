"""The entropy of cluster sizes, which keeps CC, MCC and FedMCC from collapsing to one cluster."""

import torch
from jaxtyping import Float
from torch import Tensor

from coterie.errors import ContractError
from coterie.precision import in_float32


@in_float32
def cluster_entropy(c: Float[Tensor, "n k"]) -> Float[Tensor, ""]:
    """Return H(c) = −Σ_i p_i log p_i with p_i = ‖c_i‖₁ / ‖c‖₁ over the columns c_i, in nats.

    0 ≤ H ≤ log k; H is largest when all clusters have one size, so a loss must **subtract** it
    (FedMCC prints +H in (2), (6) and (9), which collapses to one cluster).

    Args:
        c: Soft assignments.

    Returns:
        The entropy. Clusters without mass add nothing to the value and to the gradient.

    Raises:
        ContractError: If c is not a matrix.
    """
    if c.ndim != 2:
        raise ContractError(
            f"The entropy got soft assignments of shape {tuple(c.shape)}; "
            "give it one row per sample and one column per cluster."
        )
    mass = c.abs().sum(dim=0)
    p = mass / mass.sum()
    # An empty cluster's derivative is infinite; bounding the logarithm keeps NaN out of backward.
    return -torch.xlogy(p, p.clamp_min(torch.finfo(p.dtype).tiny)).sum()
