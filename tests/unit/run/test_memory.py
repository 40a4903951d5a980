"""Sizes that exceed the memory are refused before they take it."""

import numpy as np
import pytest
import torch

from coterie.errors import ConfigError
from coterie.run import memory
from coterie.run.memory import free_memory, within_memory


def test_what_fits_is_built_with_the_same_bits():
    torch.manual_seed(3)
    plain = torch.nn.Linear(5, 7)
    torch.manual_seed(3)
    with within_memory("the network", "lower its sizes"):
        counted = torch.nn.Linear(5, 7)
    assert torch.equal(plain.weight, counted.weight)
    assert free_memory() > 2**20


def test_many_tensors_are_refused_before_the_last_is_taken(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda: 1e6)
    built = []
    with (
        pytest.raises(ConfigError, match=r"^the network exceeds the memory, of which 0\.0 GiB are"),
        within_memory("the network", "lower its sizes"),
    ):
        built += [torch.empty(100, 1000) for _ in range(10)]
    assert not built
    with within_memory("the network", "lower its sizes"):
        torch.empty(100, 1000)


@pytest.mark.parametrize(
    "build",
    [
        lambda: torch.nn.Linear(10, 99_999_999_999),
        lambda: torch.empty(2**40),
        lambda: torch.randn(10**6, 10**7),
        lambda: np.empty((10**6, 10**9)),
    ],
)
def test_one_that_is_too_large_is_refused(build):
    with (
        pytest.raises(ConfigError, match=r"; lower its sizes\.$"),
        within_memory("the network", "lower its sizes"),
    ):
        build()


def test_other_errors_stay():
    with pytest.raises(RuntimeError, match="mat1"), within_memory("the network", "lower it"):
        torch.zeros(2, 3) @ torch.zeros(2, 3)
