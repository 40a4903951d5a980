"""The consistency of a sample's and its neighbour's clusters: a loop, extremes, the gradient."""

import math

import pytest
import torch
from torch import Tensor

from coterie.losses.neighbours import neighbour_consistency


def draw(n: int = 5, k: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    a, b = 2 * torch.randn(2, n, k, dtype=torch.float64, generator=generator)
    return a, b


def probabilities(logits: Tensor) -> list[float]:
    weights = [math.exp(value) for value in logits.tolist()]
    return [weight / sum(weights) for weight in weights]


def test_it_is_the_mean_logarithm_of_the_products_of_probabilities() -> None:
    a, b = draw()
    total = 0.0
    for anchor, neighbour in zip(a, b, strict=True):
        pairs = zip(probabilities(anchor), probabilities(neighbour), strict=True)
        total -= math.log(sum(p * q for p, q in pairs))
    assert neighbour_consistency(a, b).item() == pytest.approx(total / len(a), rel=1e-12)
    assert neighbour_consistency(b, a).item() == pytest.approx(total / len(a), rel=1e-12)


def test_one_sure_cluster_costs_nothing_and_two_are_finite() -> None:
    sure = torch.tensor([[200.0, 0.0, 0.0]], requires_grad=True)
    assert neighbour_consistency(sure, sure).item() == 0.0
    apart = neighbour_consistency(sure, torch.tensor([[0.0, 200.0, 0.0]]))
    assert apart.item() == pytest.approx(200.0 - math.log(2), rel=1e-6)
    (gradient,) = torch.autograd.grad(apart, sure)
    assert gradient.isfinite().all()
    assert gradient.abs().max() > 0.4


def test_the_gradient_is_that_of_the_value() -> None:
    a, b = (x.requires_grad_() for x in draw(3, 3))
    assert torch.autograd.gradcheck(neighbour_consistency, (a, b))
