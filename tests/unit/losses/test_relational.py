"""FedX's relational loss and FedCA's contrast with a dictionary against loops; identities."""

import math

import pytest
import torch
from torch import Tensor

from coterie.errors import ContractError
from coterie.losses.contrastive import nt_xent, nt_xent_against
from coterie.losses.relational import relational_loss
from tests.builders.slow_losses import cosine


def draw(*sizes: int, d: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(n, d, dtype=torch.float64, generator=generator) for n in sizes]


def softmax(values: list[float]) -> list[float]:
    total = sum(math.exp(value) for value in values)
    return [math.exp(value) / total for value in values]


@pytest.mark.parametrize(("tau", "target"), [(0.5, 0.5), (0.7, 0.2)])
def test_the_relational_loss_is_its_formula(tau: float, target: float) -> None:
    u, v, others = draw(5, 5, 7)
    total = 0.0
    for a, b in zip(u, v, strict=True):
        near = [[cosine(x, w) for w in others] for x in (a, b)]
        first, second = (softmax([s / target for s in one]) for one in near)
        q = [(x + y) / 2 for x, y in zip(first, second, strict=True)]
        for one in near:
            p = softmax([s / tau for s in one])
            total += sum(x * math.log(x / y) for x, y in zip(q, p, strict=True)) / 2
    found = relational_loss(u, v, others, tau, target).item()
    assert found == pytest.approx(total / 5, rel=1e-12)


def test_of_equal_views_at_one_temperature_it_is_zero_and_of_others_positive() -> None:
    u, v, others = draw(5, 5, 7)
    assert relational_loss(u, u, others, 0.3, 0.3).item() == pytest.approx(0.0, abs=1e-14)
    assert relational_loss(u, v, others, 0.3, 0.3).item() > 0.0


def test_the_gradients_are_those_of_the_values() -> None:
    u, v, others = (x.requires_grad_() for x in draw(3, 3, 4))
    relation = lambda a, b, c: relational_loss(a, b, c, 0.5, 0.3)  # noqa: E731
    assert torch.autograd.gradcheck(relation, (u, v, others))
    extra = others.detach()
    assert torch.autograd.gradcheck(lambda a, b: nt_xent_against(a, b, extra, 0.5), (u, v))


def test_a_dictionary_adds_negatives_to_every_view() -> None:
    u, v, others = draw(5, 5, 7)
    views, total = [*u, *v], 0.0
    for i, anchor in enumerate(views):
        negatives = [cosine(anchor, z) for j, z in enumerate(views) if j != i]
        negatives += [cosine(anchor, w) for w in others]
        near = cosine(anchor, views[(i + 5) % 10])
        total += math.log(sum(math.exp(s / 0.3) for s in negatives)) - near / 0.3
    assert nt_xent_against(u, v, others, 0.3).item() == pytest.approx(total / 10, rel=1e-12)


def test_an_empty_dictionary_leaves_nt_xent() -> None:
    u, v, none = draw(5, 5, 0)
    assert torch.equal(nt_xent_against(u, v, none, 0.3), nt_xent(u, v, 0.3))


def test_shapes_that_do_not_fit_are_refused() -> None:
    u, v, others = draw(5, 5, 7)
    for given in ((u, v[:4], others), (u, v, others[:, :2])):
        with pytest.raises(ContractError, match="give it two views of one shape and others of"):
            relational_loss(*given, 0.5, 0.5)
