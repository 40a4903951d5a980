"""Correlations of features whose mean is far larger than their deviation."""

import pytest
import torch

from coterie.losses.correlation import cross_correlation, pair_statistics


@pytest.mark.parametrize("mean", [0.0, 10.0, 1e3, 1e5])
@pytest.mark.parametrize("deviation", [0.0, 1e-3, 0.1])
def test_no_correlation_is_above_two_whatever_is_rounded(mean: float, deviation: float) -> None:
    generator = torch.Generator().manual_seed(0)
    u, v = (mean + deviation * torch.randn(256, 16, generator=generator) for _ in range(2))
    assert cross_correlation(pair_statistics(u, v)).abs().max() <= 2
    assert cross_correlation(pair_statistics(u, u)).abs().max() <= 2
