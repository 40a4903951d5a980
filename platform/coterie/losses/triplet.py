"""The triplet losses of CF-CL, and the weight of the loss on received embeddings.

CF-CL, eq. (1), (23) and (25).
"""

import math
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from coterie.errors import ContractError
from coterie.precision import widened

Reduction = Literal["mean", "sum"]
"""How to reduce over the received embeddings."""


def triplet_losses(
    anchors: Float[Tensor, "n d"],
    positives: Float[Tensor, "n d"],
    negatives: Float[Tensor, "n d"],
    margin: float,
) -> Float[Tensor, "n"]:
    """Return max{0, ‖a − p‖² − ‖a − n‖² + m} of each triplet of rows, eq. (1).

    Args:
        anchors: φ(d).
        positives: φ(d̃), the augmented anchors.
        negatives: φ(d̂), other samples.
        margin: m.

    Returns:
        Losses, in float32 or wider.

    Raises:
        ContractError: If the shapes differ.
    """
    _check(anchors, positives)
    _check(anchors, negatives)
    a, p, n = (widened(rows) for rows in (anchors, positives, negatives))
    near, far = (a - p).square().sum(dim=1), (a - n).square().sum(dim=1)
    return (near - far + margin).clamp_min(0)


def crossed_losses(
    anchors: Float[Tensor, "n d"],
    positives: Float[Tensor, "n d"],
    others: Float[Tensor, "m d"],
    margin: float,
) -> Float[Tensor, "n m"]:
    """Return eq. (1) for each anchor with each other embedding as its negative.

    Args:
        anchors: φ(d).
        positives: φ(d̃).
        others: The other embeddings.
        margin: m.

    Returns:
        Losses, in float32 or wider.
    """
    _check(anchors, positives)
    a, p, z = widened(anchors), widened(positives), widened(others)
    far = (a[:, None] - z[None]).square().sum(dim=2)
    near = (a - p).square().sum(dim=1)
    return (near[:, None] - far + margin).clamp_min(0)


def received_loss(
    anchors: Float[Tensor, "n d"],
    positives: Float[Tensor, "n d"],
    received: Float[Tensor, "m d"],
    margin: float,
    reduction: Reduction,
) -> Float[Tensor, ""]:
    """Return eq. (23)'s regulariser without its weight: received embeddings are the negatives.

    Args:
        anchors: φ(d).
        positives: φ(d̃).
        received: Constants z; with none the loss is 0.
        margin: m_reg.
        reduction: The sum over z as in the paper, which grows with the number of neighbours and
            of embeddings from each, or the mean.

    Returns:
        The mean over the anchors.
    """
    if len(received) == 0:
        return widened(anchors).new_zeros(())
    per_anchor = crossed_losses(anchors, positives, received.detach(), margin).sum(dim=1)
    return per_anchor.mean() / (len(received) if reduction == "mean" else 1)


def staleness_weight(
    step: int, *, total: int, interval: int, scale: float, rho_zeta: float
) -> float:
    """Return W_t, eq. (25): highest right after an exchange, and rising over the run.

        W_t = λ_w (exp(−(t mod T_a)/(T_a − 1)) + exp(t/T − ρζ))

    Args:
        step: t, from 1.
        total: T.
        interval: T_a; with 1 every step is fresh, and the first term is 1.
        scale: λ_w.
        rho_zeta: ρζ, which the paper leaves undefined.
    """
    age = step % interval / (interval - 1) if interval > 1 else 0.0
    return scale * (math.exp(-age) + math.exp(step / total - rho_zeta))


def _check(a: Tensor, b: Tensor) -> None:
    if a.shape != b.shape or a.ndim != 2:
        raise ContractError(
            f"A triplet loss got embeddings of shape {tuple(a.shape)} and {tuple(b.shape)}; "
            "give it matrices of one shape."
        )
