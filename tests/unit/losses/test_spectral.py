"""The spectral contrastive loss against a loop over pairs; its identities, gradients, refusals."""

import math

import pytest
import torch
from torch import Tensor

from coterie.errors import ContractError
from coterie.losses.spectral import bounded_rows, spectral_contrast
from tests.builders.slow_losses import cosine


def draw(n: int = 6, d: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    u, v = torch.randn(2, n, d, dtype=torch.float64, generator=generator)
    return u, v


def shortened(x: Tensor, bound: float) -> Tensor:
    norm = math.sqrt(float(x @ x))
    return x if norm <= math.sqrt(bound) else x / norm * math.sqrt(bound)


@pytest.mark.parametrize("bound", [None, 1.0, 3.0, 100.0])
def test_it_is_the_sum_over_all_pairs(bound: float | None) -> None:
    u, v = draw()
    attract, repel, n = 0.0, 0.0, len(u)
    for i, a in enumerate(u):
        for j, b in enumerate(v):
            cut = (
                cosine(a, b) if bound is None else float(shortened(a, bound) @ shortened(b, bound))
            )
            attract += cut if i == j else 0.0
            repel += cut**2 if i != j else 0.0
    expected = (-2 * attract / n + repel / (n * (n - 1))) / (bound or 1.0)
    assert spectral_contrast(u, v, bound).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("bound", [None, 1.0])
def test_of_equal_orthonormal_rows_it_is_minus_two(bound: float | None) -> None:
    rows = torch.linalg.qr(draw(4, 4)[0])[0]
    assert spectral_contrast(rows, rows, bound).item() == pytest.approx(-2.0, rel=1e-12)
    # The least that n orthogonal directions allow, whatever the length.
    assert spectral_contrast(3 * rows, 3 * rows, bound).item() == pytest.approx(-2.0, rel=1e-12)


def test_rows_within_the_bound_stay_and_a_row_of_zeros_has_a_finite_gradient() -> None:
    u, _ = draw()
    u[0] = 0.0
    u.requires_grad_()
    assert torch.equal(bounded_rows(u, 1e6), u)
    lengths = torch.linalg.vector_norm(bounded_rows(u, 0.25), dim=1)
    torch.testing.assert_close(lengths[1:], torch.full((5,), 0.5, dtype=u.dtype))
    (gradient,) = torch.autograd.grad(spectral_contrast(u, u, 0.25), u)
    assert torch.isfinite(gradient).all()


def test_the_gradient_is_that_of_the_value() -> None:
    u, v = (x.requires_grad_() for x in draw(3, 3))
    assert torch.autograd.gradcheck(lambda a, b: spectral_contrast(a, b, 1.5), (u, v))


@pytest.mark.parametrize("shapes", [((3, 4), (3, 5)), ((1, 4), (1, 4)), ((4,), (4,))])
def test_other_shapes_are_refused(shapes: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ContractError, match="two matrices of one shape with two rows or more"):
        spectral_contrast(*(torch.zeros(shape) for shape in shapes))
