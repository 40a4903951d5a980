"""ε of Gaussian mechanisms, by Rényi divergences (Mironov, CSF 2017), in Opacus' accountant."""

import warnings
from functools import lru_cache
from importlib.util import find_spec

from coterie.errors import ConfigError

_ORDERS = tuple(1 + 10.0 ** (step / 50) for step in range(-150, 251))
"""Rényi orders, from 1.001 to 10⁵."""
_MOST_NOISE = 1e4
_HALVINGS = 40


@lru_cache(maxsize=1024)
def epsilon(releases: int, noise_multiplier: float, delta: float) -> float:
    """ε at δ of so many Gaussian mechanisms, without amplification by sampling.

    Args:
        releases: How many noisy sums one client or sample is part of.
        noise_multiplier: Standard deviation of the noise by sensitivity.
        delta: δ.
    """
    from opacus.accountants import RDPAccountant  # takes a moment, and only private runs need it

    accountant = RDPAccountant()
    accountant.history = [(noise_multiplier, 1.0, releases)] if releases else []
    return max(0.0, float(accountant.get_epsilon(delta, alphas=list(_ORDERS))))


def check_installed(key: str) -> None:
    """Raise a ConfigError that names a key if Opacus is missing."""
    if find_spec("opacus") is None:
        raise ConfigError(
            f"{key}: opacus, which computes ε, is not installed; install it with pip install "
            "'coterie[dp]'."
        )


def noise_for(target: float, delta: float) -> float:
    """The least noise multiplier with which one Gaussian mechanism has an ε of `target` at δ.

    Raises:
        ValueError: If no noise multiplier up to 10⁴ has it.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Optimal order")  # of noise far from the answer
        if epsilon(1, _MOST_NOISE, delta) > target:
            raise ValueError(f"ε={target:g} at δ={delta:g} takes noise over {_MOST_NOISE:g}")
        low, high = 0.0, _MOST_NOISE
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if epsilon(1, middle, delta) <= target else (middle, high)
    return high
