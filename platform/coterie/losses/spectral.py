"""The spectral contrastive loss, from pairs of a batch or from correlation matrices."""

import torch
from jaxtyping import Float
from torch import Tensor

from coterie.errors import ContractError
from coterie.precision import in_float32, unit_rows


def spectral_contrast(
    u: Float[Tensor, "n d"], v: Float[Tensor, "n d"], bound: float | None = None
) -> Float[Tensor, ""]:
    """Return the spectral contrastive loss of HaoChen et al., eq. (6), over a batch.

        L = ( −(2/n) Σ_i ⟨u_i, v_i⟩ + 1/(n(n−1)) Σ_{i≠j} ⟨u_i, v_j⟩² ) / μ,

    with rows of length at most √μ; longer ones are shortened. Without a bound all rows have
    length 1 and μ = 1, as in Orchestra's baseline.

    Args:
        u: One view's projections, n ≥ 2.
        v: The other view's; row i of both is sample i.
        bound: μ > 0, or None for cosines.

    Returns:
        The loss; −2 for orthonormal rows u = v and μ = 1.

    Raises:
        ContractError: If the shapes differ or there are fewer than two rows.
    """
    if u.shape != v.shape or u.ndim != 2 or len(u) < 2:
        raise ContractError(
            f"The spectral loss got views of shapes {tuple(u.shape)} and {tuple(v.shape)}; "
            "give it two matrices of one shape with two rows or more."
        )
    if bound is None:
        return _pairs(unit_rows(u), unit_rows(v))
    return _pairs(bounded_rows(u, bound), bounded_rows(v, bound)) / bound


@in_float32
def bounded_rows(x: Float[Tensor, "n d"], bound: float) -> Float[Tensor, "n d"]:
    """Shorten rows to length √μ where they are longer, in float32 or wider.

    Args:
        x: Rows.
        bound: μ > 0.
    """
    norms = torch.linalg.vector_norm(x, dim=1, keepdim=True)
    shortened: Tensor = x * (bound**0.5 / norms.clamp_min(bound**0.5))
    return shortened


@in_float32
def _pairs(u: Tensor, v: Tensor) -> Tensor:
    products, n = u @ v.T, len(u)
    same = products.diagonal()
    others = (products - torch.diag(same)).square().sum()
    return -2.0 * same.mean() + others / (n * (n - 1))
