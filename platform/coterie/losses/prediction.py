"""The losses of BYOL and SimSiam: one view's projection predicted from the other's."""

from torch import Tensor

from coterie.errors import ContractError
from coterie.precision import unit_rows


def negative_cosine(p: Tensor, z: Tensor) -> Tensor:
    """D(p, z) = −(1/n) Σ_i s(p_i, z_i) of SimSiam, eq. (1), with s the cosine similarity.

    Args:
        p: One view's predictions (n, d).
        z: The other view's projections (n, d), row i of both being sample i. No gradient reaches
            them: SimSiam's stop-gradient, BYOL's target.

    Returns:
        The loss, a scalar in [−1, 1].

    Raises:
        ContractError: If the shapes differ or are not those of matrices.
    """
    if p.shape != z.shape or p.ndim != 2:
        raise ContractError(
            f"The prediction's loss got shapes {tuple(p.shape)} and {tuple(z.shape)}; "
            "give it two matrices of one shape."
        )
    return -(unit_rows(p) * unit_rows(z.detach())).sum(dim=1).mean()


def normalised_error(p: Tensor, z: Tensor) -> Tensor:
    """(1/n) Σ_i ‖p_i/‖p_i‖ − z_i/‖z_i‖‖² = 2 + 2 D(p, z) of BYOL, eq. (2), a scalar in [0, 4].

    Args:
        p: The online network's predictions of one view (n, d).
        z: The target network's projections of the other view (n, d); no gradient reaches them.

    Raises:
        ContractError: If the shapes differ or are not those of matrices.
    """
    return 2.0 + 2.0 * negative_cosine(p, z)
