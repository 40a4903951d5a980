"""The closed-form gradients against autograd, in float64."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from coterie.losses.contrastive import PLAIN_UP_TO, cluster_contrastive_loss, contrastive_loss
from coterie.losses.entropy import cluster_entropy
from tests.builders.closed_forms import contrastive_gradients, entropy_gradient

Loss = Callable[..., torch.Tensor]


def assert_equal_to_rounding(found: Tensor, expected: Tensor) -> None:
    assert (found - expected).abs().max() <= 1e-12 * expected.abs().max()


@pytest.mark.parametrize("include_positive", [False, True])
@pytest.mark.parametrize("temperature", [0.05, 0.5, 1.0])
@pytest.mark.parametrize(("n", "d"), [(2, 3), (8, 4), (40, 16), (5, 64)])
def test_contrastive(n: int, d: int, temperature: float, include_positive: bool) -> None:
    generator = torch.Generator().manual_seed(n)
    scale = 10 ** (2 * torch.rand(2, n, 1, dtype=torch.float64, generator=generator) - 1)
    u, v = scale * torch.randn(2, n, d, dtype=torch.float64, generator=generator)
    u, v = u.clone().requires_grad_(), v.clone().requires_grad_()
    loss = contrastive_loss(u, v, temperature, include_positive)
    expected = torch.autograd.grad(loss, (u, v))
    found = contrastive_gradients(u, v, temperature, include_positive)
    for ours, autograd in zip(found, expected, strict=True):
        assert not ours.requires_grad
        assert_equal_to_rounding(ours, autograd)


def test_contrastive_is_the_slope_of_the_loss() -> None:
    u, v = torch.randn(2, 6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    step = torch.zeros_like(u)
    step[2, 1] = 1e-6
    slope = (contrastive_loss(u + step, v, 0.5) - contrastive_loss(u - step, v, 0.5)) / 2e-6
    torch.testing.assert_close(contrastive_gradients(u, v, 0.5)[0][2, 1], slope, rtol=1e-7, atol=0)


def test_contrastive_is_orthogonal_to_its_rows() -> None:
    # A cosine does not change with length.
    u, v = torch.randn(2, 9, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    grad_u, grad_v = contrastive_gradients(u, v, 0.1)
    assert (grad_u * u).sum(1).abs().max() < 1e-14
    assert (grad_v * v).sum(1).abs().max() < 1e-14


def test_entropy() -> None:
    generator = torch.Generator().manual_seed(0)
    soft = torch.randn(12, 5, dtype=torch.float64, generator=generator).softmax(dim=1)
    signed = torch.randn(12, 5, dtype=torch.float64, generator=generator)
    for c in (soft, signed):
        c.requires_grad_()
        (expected,) = torch.autograd.grad(cluster_entropy(c), c)
        assert_equal_to_rounding(entropy_gradient(c), expected)


def test_entropy_with_an_empty_cluster() -> None:
    c = torch.tensor([[0.25, 0.75, 0.0], [0.5, 0.5, 0.0]], dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(cluster_entropy(c), c)
    assert_equal_to_rounding(entropy_gradient(c), expected)


@pytest.mark.parametrize("loss", [contrastive_loss, cluster_contrastive_loss])
def test_a_loss_by_its_closed_form_is_the_loss_by_autograd(
    loss: Loss, monkeypatch: pytest.MonkeyPatch
) -> None:
    u, v = torch.randn(2, 9, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    u, v = u.clone().requires_grad_(), v.clone().requires_grad_()
    given = []
    for most in (0, PLAIN_UP_TO):  # rows up to which autograd is taken
        monkeypatch.setattr("coterie.losses.contrastive.PLAIN_UP_TO", most)
        given.append(loss(u, v, 0.1, True))
    assert [type(value.grad_fn).__name__ for value in given] == ["_TiledBackward", "MeanBackward0"]
    assert_equal_to_rounding(*given)
    ours, autograd = (torch.autograd.grad(3.0 * value, (u, v)) for value in given)
    for one, other in zip(ours, autograd, strict=True):
        assert_equal_to_rounding(one, other)


def test_many_rows_take_the_closed_form() -> None:
    for rows, function in ((PLAIN_UP_TO, "MeanBackward0"), (PLAIN_UP_TO + 1, "_TiledBackward")):
        u = torch.randn(rows, 2).requires_grad_()
        assert type(contrastive_loss(u, u, 0.5).grad_fn).__name__ == function
