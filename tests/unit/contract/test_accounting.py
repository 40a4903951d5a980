"""ε of Gaussian mechanisms, and the noise that an ε takes."""

import math

import pytest
from scipy.special import log_ndtr

from coterie.contract.accounting import epsilon, noise_for


def exact_delta(target: float, noise: float) -> float:
    """δ of one Gaussian mechanism: Balle and Wang (ICML 2018), theorem 8."""
    above = math.exp(log_ndtr(0.5 / noise - target * noise))
    below = math.exp(target + log_ndtr(-0.5 / noise - target * noise))
    return above - below


@pytest.mark.parametrize("target", [0.8, 1.0, 10.0])
def test_the_noise_has_the_epsilon_and_is_not_much_more_than_the_least(target: float) -> None:
    noise = noise_for(target, 1e-3)
    assert epsilon(1, noise, 1e-3) == pytest.approx(target, rel=1e-6)
    assert epsilon(1, noise, 1e-3) <= target
    assert exact_delta(target, noise) <= 1e-3 < exact_delta(target, 0.9999 * noise)


def test_phases_add_up() -> None:
    noise = noise_for(1.0, 1e-3)
    spent = [epsilon(phases, noise, 1e-3) for phases in (0, 1, 2, 101)]
    assert spent == sorted(spent)
    assert spent[0] == 0.0
    # n of them are one with noise less by √n.
    assert spent[3] == pytest.approx(epsilon(1, noise / 101**0.5, 1e-3), rel=1e-9)


def test_an_epsilon_below_all_noise_is_refused() -> None:
    with pytest.raises(ValueError, match="takes noise over 10000"):
        noise_for(1e-7, 1e-9)


def test_the_noise_is_no_more_than_the_exact_curve_asks_for() -> None:
    """By Rényi divergences ε at δ = 1e-5 and σ = 30 over 100 sums would be 1.39."""
    found = epsilon(100, 30.0, 1e-5)
    assert found == pytest.approx(1.2711, abs=1e-3)
    assert exact_delta(found, 3.0) == pytest.approx(1e-5, rel=1e-3)


@pytest.mark.parametrize("sigma", [3, 40])
def test_discrete_noise_has_the_epsilon_of_a_little_less_continuous_noise(sigma: int) -> None:
    """δ of one coordinate, summed over all outcomes, against the curve at √(σ² − 4)."""
    steps, change = range(-40 * sigma, 40 * sigma), sigma  # sensitivity of σ steps
    weights = [math.exp(-(x * x) / (2 * sigma**2)) for x in steps]
    total, target = sum(weights), 1.0
    loss = [(change**2 + 2 * change * x) / (2 * sigma**2) for x in steps]
    pairs = zip(weights, loss, strict=True)
    delta = sum(w / total * max(0.0, 1 - math.exp(target - lost)) for w, lost in pairs)
    assert delta <= exact_delta(target, math.sqrt(sigma**2 - 4) / change)
