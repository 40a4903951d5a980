"""IDFD's losses against loops written from the paper's formulas; their least values, gradients."""

import math

import pytest
import torch
from torch import Tensor

from coterie.losses.instance import feature_decorrelation, instance_discrimination

BANK, PLACES = 7, [4, 0, 6]


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def unit(x: Tensor) -> Tensor:
    return torch.stack([row / math.sqrt(float(row @ row)) for row in x])


@pytest.mark.parametrize("tau", [1.0, 0.3])
def test_a_feature_is_told_from_the_vectors_of_all_samples(tau: float) -> None:
    f, bank = unit(draw(3, 4)), unit(draw(BANK, 4, seed=1))
    total = 0.0
    for feature, place in zip(f, PLACES, strict=True):
        weights = [math.exp(float(vector @ feature) / tau) for vector in bank]
        total -= math.log(weights[place] / sum(weights))
    found = instance_discrimination(f, bank, torch.tensor(PLACES), tau)
    assert found.item() == pytest.approx(total / 3, rel=1e-12)


@pytest.mark.parametrize("tau", [2.0, 0.5])
def test_a_column_is_told_from_the_columns_of_all_features(tau: float) -> None:
    f = draw(6, 4)
    columns, total = unit(f.T), 0.0
    for l, own in enumerate(columns):  # noqa: E741 - the paper's letter
        weights = [math.exp(float(other @ own) / tau) for other in columns]
        total -= math.log(weights[l] / sum(weights))
    assert feature_decorrelation(f, tau).item() == pytest.approx(total / 4, rel=1e-12)


def test_decorrelation_does_not_depend_on_the_columns_lengths() -> None:
    f = draw(6, 4)
    scaled = f * torch.tensor([0.1, 1.0, 5.0, 30.0], dtype=f.dtype)
    expected = feature_decorrelation(f, 2.0).item()
    assert feature_decorrelation(scaled, 2.0).item() == pytest.approx(expected, rel=1e-12)


def test_orthogonal_columns_have_a_smaller_loss_than_correlated_ones_and_equal_ones_the_most() -> (
    None
):
    apart = torch.linalg.qr(draw(6, 4))[0]
    value = feature_decorrelation(apart, 2.0).item()
    assert value == pytest.approx(math.log(1 + 3 / math.exp(0.5)), rel=1e-12)
    assert value < feature_decorrelation(draw(6, 4).abs(), 2.0).item()
    equal = draw(6, 1).expand(6, 4)
    assert feature_decorrelation(equal, 2.0).item() == pytest.approx(math.log(4), rel=1e-12)


def test_the_gradients_are_those_of_the_values_and_none_reaches_the_bank() -> None:
    f, bank = unit(draw(3, 4)).requires_grad_(), unit(draw(BANK, 4)).requires_grad_()
    places = torch.tensor(PLACES)
    assert torch.autograd.gradcheck(lambda x: instance_discrimination(x, bank, places, 0.7), f)
    assert torch.autograd.gradcheck(lambda x: feature_decorrelation(x, 0.7), f)
    instance_discrimination(f, bank, places, 1.0).backward()
    assert bank.grad is None


def test_under_autocast_they_are_computed_in_float32() -> None:
    f, bank, places = unit(draw(3, 4)).float(), unit(draw(BANK, 4)).float(), torch.tensor(PLACES)
    plain = instance_discrimination(f, bank, places, 0.1), feature_decorrelation(f, 0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = instance_discrimination(f, bank, places, 0.1), feature_decorrelation(f, 0.1)
    for value, wanted in zip(found, plain, strict=True):
        assert torch.equal(value, wanted)
