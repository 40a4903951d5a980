"""Sizes that exceed the memory are refused before they take it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from coterie.config.free_memory import unclaimed_memory
from coterie.config.schema import ClusterConfig
from coterie.contract.phase import Phase, ServerState
from coterie.errors import ConfigError
from coterie.run import memory
from coterie.run.memory import within_memory


def test_what_fits_is_built_with_the_same_bits():
    torch.manual_seed(3)
    plain = torch.nn.Linear(5, 7)
    torch.manual_seed(3)
    with within_memory("the network", "lower its sizes"):
        counted = torch.nn.Linear(5, 7)
    assert torch.equal(plain.weight, counted.weight)
    assert unclaimed_memory() > 2**20


def test_many_tensors_are_refused_before_the_last_is_taken(monkeypatch):
    monkeypatch.setattr(memory, "unclaimed_memory", lambda: 1e6)
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


def state(elements):
    return ServerState(slots={"model": {"w": torch.zeros(elements)}})


BOTH = Phase(name="p", stage="s", round=1, down=frozenset({"model"}), up=frozenset({"model"}))


def test_a_round_that_does_not_fit_is_told_before_it(monkeypatch):
    monkeypatch.setattr(memory, "unclaimed_memory", lambda: 69 * 2.0**20)
    model = state(2**20)  # 4 MiB, of which a sum takes 16
    two = ClusterConfig(num_actors=2)  # 3 x 24 MiB, and a store of 20
    with pytest.raises(ConfigError, match=r"takes 0\.1 GiB or more in the driver and 2 actors"):
        memory.check_round(BOTH, model, two, clients=9)
    memory.check_round(BOTH, model, two, clients=1)  # one actor: 48 MiB, and a store of 20
    memory.check_round(BOTH, model, ClusterConfig(backend="serial"), clients=9)
    memory.check_round(BOTH, model, ClusterConfig(num_actors=99, address="10.0.0.1:6379"), 99)
    memory.check_round(replace(BOTH, up=frozenset()), model, two, clients=9)


def test_a_limit_of_the_process_counts(monkeypatch):
    taken = unclaimed_memory()
    monkeypatch.setattr("resource.getrlimit", lambda kind: (1 << 20, 1 << 20))
    assert unclaimed_memory() == 0 < taken
