"""Instance discrimination against a bank, and decorrelation of a batch's features.

Tao, Takagi and Nakata, "Clustering-friendly Representation Learning via Instance Discrimination and
Feature Decorrelation" (IDFD, ICLR 2021), sections 3.1 and 3.2. Both are means, as in the authors'
code, where the paper has sums.
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from coterie.precision import in_float32


@in_float32
def instance_discrimination(
    f: Float[Tensor, "n d"],
    bank: Float[Tensor, "m d"],
    positions: Int64[Tensor, "n"],
    temperature: float,
) -> Float[Tensor, ""]:
    """Return L_I = −(1/n) Σ_i log( exp(⟨v_i, f_i⟩/τ) / Σ_j exp(⟨v_j, f_i⟩/τ) ).

    Args:
        f: Features of unit length.
        bank: The vectors v of all m samples, of unit length; constants.
        positions: The row v_i of each feature's own sample.
        temperature: τ > 0.
    """
    return cross_entropy(f @ bank.detach().T / temperature, positions)


@in_float32
def feature_decorrelation(f: Float[Tensor, "n d"], temperature: float) -> Float[Tensor, ""]:
    """Return L_F = −(1/d) Σ_l log( exp(⟨g_l, g_l⟩/τ₂) / Σ_m exp(⟨g_l, g_m⟩/τ₂) ).

    g_l is the feature l over the batch, a column of f at unit length. L_F is least where the
    columns are as far apart as they can be.

    Args:
        f: Features.
        temperature: τ₂ > 0.
    """
    g = normalize(f, dim=0)
    return cross_entropy(g.T @ g / temperature, torch.arange(f.shape[1], device=f.device))
