"""The discrete Gaussian: its distribution against its probabilities, and its stream of bits."""

import math

import numpy as np
import pytest
from scipy.stats import chisquare

from coterie.aggregation.discrete_gaussian import LARGEST, Stream, discrete_gaussian

KEY = bytes(range(32))


def probabilities(sigma, reach):
    """P[X = x] ∝ exp(-x²/(2σ²)) for |x| <= reach."""
    x = np.arange(-reach, reach + 1)
    weights = np.exp(-(x**2) / (2 * sigma**2))
    return weights / weights.sum()


@pytest.mark.parametrize("sigma", [1, 2, 3, 7, 20])
def test_the_distribution_is_the_discrete_gaussian(sigma):
    size, reach = 200_000, 4 * sigma
    drawn = discrete_gaussian(Stream(KEY), sigma, size)
    inside = drawn[np.abs(drawn) <= reach]
    found = np.bincount(inside + reach, minlength=2 * reach + 1)
    expected = probabilities(sigma, 20 * sigma)[16 * sigma : -16 * sigma] * size
    found, expected = np.append(found, size - len(inside)), np.append(expected, 0.0)
    expected[-1] = size - expected[:-1].sum()
    assert chisquare(found, expected).pvalue > 1e-3


@pytest.mark.parametrize("sigma", [1, 5, 1000, 2**20, LARGEST])
def test_mean_and_deviation(sigma):
    size = 100_000
    drawn = discrete_gaussian(Stream(KEY), sigma, size).astype(np.float64) / sigma
    variance = (probabilities(sigma, 30) * np.arange(-30, 31) ** 2).sum() if sigma < 3 else sigma**2
    assert abs(drawn.mean()) < 4 / math.sqrt(size)
    assert abs(drawn.var() * sigma**2 / variance - 1) < 4 * math.sqrt(2 / size)
    assert abs((drawn**4).mean() * sigma**4 / variance**2 - 3) < 0.15


def test_the_key_decides_the_draw_and_a_longer_draw_goes_on():
    first = discrete_gaussian(Stream(KEY), 50, 1000)
    assert np.array_equal(first, discrete_gaussian(Stream(KEY), 50, 1000))
    assert not np.array_equal(first, discrete_gaussian(Stream(bytes(32)), 50, 1000))
    assert first.dtype == np.int64
    assert len(discrete_gaussian(Stream(KEY), 50, 0)) == 0


def test_coordinates_are_independent():
    drawn = discrete_gaussian(Stream(KEY), 100, 100_000).astype(np.float64)
    for lag in (1, 2, 7):
        assert abs(np.corrcoef(drawn[:-lag], drawn[lag:])[0, 1]) < 4 / math.sqrt(len(drawn))


@pytest.mark.parametrize("number", [2, 3, 10, 12, 3 * 2**60, 3 * 2**61, 2**63])
def test_uniform_numbers_have_no_bias(number):
    drawn = Stream(KEY).below(number, 40_000)
    assert drawn.max() < number
    cells = min(number, 12)  # 2⁶⁴ mod 3·2⁶¹ is a quarter: a plain remainder would favour the low
    cell = drawn if number <= cells else drawn // np.uint64(-(-number // cells))
    assert chisquare(np.bincount(cell.astype(int), minlength=cells)).pvalue > 1e-3


@pytest.mark.parametrize("sigma", [0, -1, LARGEST + 1])
def test_other_deviations_are_refused(sigma):
    with pytest.raises(ValueError, match="sigma"):
        discrete_gaussian(Stream(KEY), sigma, 1)
