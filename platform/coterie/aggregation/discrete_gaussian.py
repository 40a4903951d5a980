"""Noise for differential privacy: exact samples of the discrete Gaussian, from a secret key.

Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy" (NeurIPS 2020),
algorithms 1 to 3, for whole σ and arrays. All is integer arithmetic: a continuous Gaussian, rounded
to floating numbers, would tell about the sum through its last bits.
"""

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

LARGEST = 2**31
"""Largest σ: 2σ² still fits into 64 bits."""
_BLOCK = 2**16  # candidates per step, so that they stay in the cache
_SPARE = 3  # candidates per sample; more than two of five are accepted

Words = NDArray[np.uint64]
Flags = NDArray[np.bool_]


class Stream:
    """Uniform random integers from the key stream of AES-256 in counter mode.

    Args:
        key: 32 secret bytes; a key makes one stream only.
    """

    def __init__(self, key: bytes) -> None:
        self._cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def below(self, number: int, size: int) -> Words:
        """Draw integers in [0, number), exactly uniform, (size,)."""
        words = self._words(size)
        rest = 2**64 % number
        if rest:
            last = np.uint64(2**64 - rest - 1)
            while len(over := np.flatnonzero(words > last)):
                words[over] = self._words(len(over))
        return words % np.uint64(number)

    def _words(self, size: int) -> Words:
        return np.frombuffer(self._cipher.update(bytes(8 * size)), "<u8").astype(np.uint64)


def discrete_gaussian(stream: Stream, sigma: int, size: int) -> NDArray[np.int64]:
    """Draw independent integers x with P[x] ∝ exp(-x²/(2σ²)).

    σ is from 1 to `LARGEST`.

    Returns:
        int64 (size,); |x| exceeds 40 σ with a probability below 10⁻³⁰⁰.
    """
    if not 1 <= sigma <= LARGEST:
        raise ValueError(f"sigma={sigma}: give 1 to {LARGEST}")
    drawn, missing = [np.zeros(0, dtype=np.int64)], size
    while missing:
        found = _candidates(stream, sigma, min(_SPARE * missing + 32, _BLOCK))[:missing]
        drawn.append(found)
        missing -= len(found)
    return np.concatenate(drawn)


def _candidates(stream: Stream, sigma: int, tries: int) -> NDArray[np.int64]:
    """Draw discrete Laplace samples ±(u + σ v) and thin them; return those that were accepted."""
    low = stream.below(sigma, tries)
    low = low[_bernoulli(stream, low, sigma)]
    times = np.zeros(len(low), dtype=np.int64)
    going = np.arange(len(low))
    while len(going := going[_bernoulli(stream, np.ones(len(going), np.uint64), 1)]):
        times[going] += 1
    negative = stream.below(2, len(low)) == 1
    keep = ~(negative & (low == 0) & (times == 0))  # else 0 would come twice as often
    keep[keep] = _thinned(stream, sigma, low[keep], times[keep])
    accepted: NDArray[np.int64] = (low.astype(np.int64) + sigma * times)[keep]
    accepted[negative[keep]] *= -1
    return accepted


def _thinned(stream: Stream, sigma: int, low: Words, times: NDArray[np.int64]) -> Flags:
    """Draw Bernoulli(exp(-(y - σ)²/(2σ²))) of y = u + σ v, in factors that fit into 64 bits.

    For v ≥ 1 the exponent is u²/(2σ²) + (v - 1) u/σ + (v - 1)²/2.
    """
    offset = np.where(times == 0, np.uint64(sigma) - low, low)
    kept = _bernoulli(stream, offset * offset, 2 * sigma**2)
    rest = np.maximum(times - 1, 0)
    kept = _repeated(stream, low, sigma, rest, kept)
    return _repeated(stream, np.ones_like(low), 2, rest**2, kept)


def _repeated(
    stream: Stream, numerators: Words, denominator: int, times: NDArray[np.int64], kept: Flags
) -> Flags:
    """Return whether `times` draws of Bernoulli(exp(-n/d)) all succeed, for each kept candidate."""
    kept, done = kept.copy(), 0
    while len(going := np.flatnonzero(kept & (times > done))):
        kept[going] = _bernoulli(stream, numerators[going], denominator)
        done += 1
    return kept


def _bernoulli(stream: Stream, numerators: Words, denominator: int) -> Flags:
    """Draw Bernoulli(exp(-n/d)) for 0 ≤ n ≤ d: algorithm 1."""
    odd = np.zeros(len(numerators), dtype=np.bool_)
    going, k = np.arange(len(numerators)), 1
    while len(going):
        hit = stream.below(denominator, len(going)) < numerators[going]
        if k > 1:
            hit &= stream.below(k, len(going)) == 0
        odd[going[~hit]] = k % 2 == 1
        going, k = going[hit], k + 1
    return odd
