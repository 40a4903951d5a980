"""ε of Gaussian mechanisms: the exact curve of Balle and Wang (ICML 2018), theorem 8.

n mechanisms of which one client or sample is part have the privacy of one with noise less by √n
(Dong, Roth and Su, "Gaussian Differential Privacy", 2019, corollary 3.3).

The noise here is a discrete Gaussian of σ steps of a lattice. It equals a continuous Gaussian of
√(σ² − 4) steps that is then rounded at random to the lattice, but for a factor that differs from 1
by less than 10⁻³³ a coordinate (Peikert, CRYPTO 2010, theorem 3.1). So ε is that of a Gaussian with
`_LATTICE` of the noise, for σ of `LEAST_STEPS` and more.
"""

import math
from functools import lru_cache

from scipy.optimize import brentq
from scipy.special import log_ndtr

LEAST_STEPS = 500
"""The least σ, in steps of the lattice, for which ε holds."""
_LATTICE = 1 - 1e-5
_MOST_NOISE = 1e4
_ROUNDING = 1e-9
"""Relative increase of ε that covers rounding of the root and the curve."""


@lru_cache(maxsize=1024)
def epsilon(releases: int, noise_multiplier: float, delta: float) -> float:
    """Return ε at δ of a number of Gaussian mechanisms, without amplification by sampling.

    Args:
        releases: How many noisy sums one client or sample is part of.
        noise_multiplier: Standard deviation of the noise by sensitivity.
        delta: δ.
    """
    if not releases:
        return 0.0
    shift = math.sqrt(releases) / (noise_multiplier * _LATTICE)
    if _log_delta(0.0, shift) <= math.log(delta):
        return 0.0
    most = shift * (shift / 2 + math.sqrt(2 * math.log(1 / delta)))
    found = brentq(lambda e: _log_delta(e, shift) - math.log(delta), 0.0, most, xtol=1e-14)
    return float(found) * (1 + _ROUNDING)


def _log_delta(epsilon: float, shift: float) -> float:
    """Return the log of δ at ε, where the sum changes by `shift` deviations of its noise."""
    above = float(log_ndtr(shift / 2 - epsilon / shift))
    below = epsilon + float(log_ndtr(-shift / 2 - epsilon / shift))
    return above + math.log1p(-math.exp(min(below - above, -1e-16)))


def noise_for(target: float, delta: float) -> float:
    """Return the least noise multiplier with which a Gaussian mechanism has this ε at δ.

    Raises:
        ValueError: If no noise multiplier up to 10⁴ has it.
    """
    if epsilon(1, _MOST_NOISE, delta) > target:
        raise ValueError(f"ε={target:g} at δ={delta:g} takes noise over {_MOST_NOISE:g}")
    least = 1e-3
    found = brentq(lambda noise: epsilon(1, noise, delta) - target, least, _MOST_NOISE, rtol=1e-12)
    return float(found) * (1 + 1e-8)
