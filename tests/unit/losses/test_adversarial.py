"""The adversarial losses against their definition, term by term."""

import math

import pytest
import torch

from coterie.losses.adversarial import discriminator_loss, generator_loss


def slow_log_sigmoid(logit: float) -> float:
    return -math.log1p(math.exp(-logit))


def test_they_are_the_means_of_the_logarithms() -> None:
    draw = torch.Generator().manual_seed(0)
    real, made = torch.randn(2, 7, 1, generator=draw, dtype=torch.float64)
    trusted = sum(slow_log_sigmoid(float(x)) for x in real) / 7
    refused = sum(slow_log_sigmoid(-float(x)) for x in made) / 7
    believed = sum(slow_log_sigmoid(float(x)) for x in made) / 7
    assert float(discriminator_loss(real, made)) == pytest.approx(-trusted - refused, rel=1e-12)
    assert float(generator_loss(made)) == pytest.approx(-believed, rel=1e-12)


def test_a_discriminator_that_cannot_tell_has_two_log_two() -> None:
    zeros = torch.zeros(4, 1)
    assert float(discriminator_loss(zeros, zeros)) == pytest.approx(2 * math.log(2))
    assert float(generator_loss(zeros)) == pytest.approx(math.log(2))


def test_large_logits_stay_finite() -> None:
    far = torch.full((3, 1), 1e4)
    assert float(discriminator_loss(far, far)) == pytest.approx(1e4)
    assert float(generator_loss(-far)) == pytest.approx(1e4)
