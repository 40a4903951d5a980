"""ε of Gaussian mechanisms, and the noise that an ε takes."""

import math

import pytest
from scipy.special import log_ndtr

from coterie.contract import accounting
from coterie.contract.accounting import check_installed, epsilon, noise_for
from coterie.errors import ConfigError


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
    assert exact_delta(target, noise) <= 1e-3 < exact_delta(target, 0.7 * noise)


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


def test_without_opacus_the_key_is_named_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_installed("method.epsilon=1")
    monkeypatch.setattr(accounting, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"^method\.epsilon=1: opacus.*'coterie\[dp\]'\.$"):
        check_installed("method.epsilon=1")
