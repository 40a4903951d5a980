"""Median and trimmed mean against NumPy and SciPy, and what a faulty client can do to them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import trim_mean

from coterie.aggregation.exact import Layout
from coterie.aggregation.rule import Rule, trimmed_mean
from coterie.aggregation.stage import Contribution, PhaseRun
from coterie.config.aggregation import AggregationConfig
from coterie.contract.phase import Outcome, Phase, WeightedUpdate
from tests.builders.sums import fold, mean_of


def updates(clients, seed=0, shape=(3, 4)):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(clients, *shape, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("clients", range(1, 9))
def test_the_median_is_numpys(clients):
    stacked = updates(clients)
    found = trimmed_mean(stacked, 0.5)
    assert np.array_equal(found.numpy(), np.median(stacked.numpy(), axis=0))


@pytest.mark.parametrize("clients", [1, 2, 5, 10, 20])
@pytest.mark.parametrize("trim", [0.0, 0.1, 0.2, 0.25, 0.45])
def test_the_trimmed_mean_is_scipys(clients, trim):
    stacked = updates(clients)
    found = trimmed_mean(stacked, trim)
    np.testing.assert_allclose(found.numpy(), trim_mean(stacked.numpy(), trim, axis=0), rtol=1e-13)


def test_the_share_to_trim_is_a_decimal():
    stacked = torch.arange(100.0)[:, None] ** 2  # 0.29 * 100 is 28.999… in binary
    kept = np.arange(29, 71) ** 2
    assert trimmed_mean(stacked, 0.29).item() == pytest.approx(kept.mean(), rel=1e-14)


def test_trimming_nothing_is_the_equal_weight_mean_to_rounding():
    values = updates(5, shape=(3,)).float()
    exact = fold([(row.tolist(), 1) for row in values])
    found = trimmed_mean(values, 0.0).float()
    assert torch.allclose(found, mean_of(exact), rtol=2e-7, atol=0)


@given(
    clients=st.integers(3, 12),
    seed=st.integers(0, 99),
    size=st.sampled_from([1e10, -1e30, 3e38, float(np.finfo(np.float32).min)]),
)
def test_faulty_clients_leave_the_median_within_the_honest_ones(clients, seed, size):
    honest = updates(clients, seed).float()
    faulty = torch.full(((clients - 1) // 2, *honest.shape[1:]), size)
    stacked = torch.cat([faulty, honest])
    for found in (trimmed_mean(stacked, 0.5), trimmed_mean(stacked, 0.49)):
        assert bool((found >= honest.amin(dim=0).double()).all())
        assert bool((found <= honest.amax(dim=0).double()).all())


def test_one_huge_client_does_not_move_the_median_of_equal_ones():
    stacked = torch.stack([torch.full((2,), v) for v in (0.1, 0.1, 3e38, 0.1)])
    assert torch.equal(trimmed_mean(stacked, 0.5).float(), torch.full((2,), 0.1))
    assert torch.equal(trimmed_mean(stacked, 0.25).float(), torch.full((2,), 0.1))
    assert trimmed_mean(stacked, 0.24).max() > 1e37  # nothing is cut


def test_trimming_almost_half_leaves_the_middle():
    for clients in (1, 2, 3, 4, 5):
        stacked = updates(clients)
        assert torch.equal(trimmed_mean(stacked, 0.4999999999), trimmed_mean(stacked, 0.5))


def joined(config, **slots):
    """What the rule makes of slots that clients sent whole: slot to a tensor "w" of each."""
    zeros = {slot: {"w": torch.zeros_like(tensors[0])} for slot, tensors in slots.items()}
    run = PhaseRun(
        phase=Phase(name="p", stage="s", round=1),
        sizes={},
        offered={},
        server={},
        layouts={slot: Layout.of(zero) for slot, zero in zeros.items()},
    )
    whole = {slot: lambda given=given: [{"w": w} for w in given] for slot, given in slots.items()}
    return Rule(config).join(run, whole)


def test_each_slot_is_joined_over_the_clients_that_sent_it_in_the_servers_type():
    half = torch.tensor([0.5])
    config = AggregationConfig(rule="median")
    means = joined(config, a=[1 * half, 9 * half, 2 * half], b=[half])
    assert {slot: mean.weight for slot, mean in means.items()} == {"a": 3, "b": 1}
    assert {slot: mean.tensors["w"].tolist() for slot, mean in means.items()} == {
        "a": [1.0],
        "b": [0.5],
    }
    assert means["a"].tensors["w"].dtype == torch.float32
    assert joined(config) == {}


def test_a_trimmed_mean_in_sixteen_bits_is_rounded_once():
    """It is just above 1.01953125, the middle of its neighbours, by less than float32 has."""
    values = (1.03125, 1.03125, 1.09375, 1.96875, 1.015625, 1.0078125, 1.0078125, 3 * 2.0**-24)
    sent = [torch.tensor([value], dtype=torch.bfloat16) for value in values]
    means = joined(AggregationConfig(rule="trimmed_mean", trim=0.0), a=sent)
    assert means["a"].tensors["w"].item() == 1.0234375


def test_a_contribution_goes_into_the_sums_or_whole_to_the_server_never_both():
    up = {"s": WeightedUpdate(weight=7, tensors={"w": torch.ones(2)})}
    given = Contribution(outcome=Outcome(up=up), up=up)
    sent = {
        rule: Rule(AggregationConfig(rule=rule)).contribute(given, None)
        for rule in ("weighted", "equal", "median", "trimmed_mean")
    }
    found = {r: ({s: m.weight for s, m in c.up.items()}, list(c.whole)) for r, c in sent.items()}
    assert found == {
        "weighted": ({"s": 7}, []),
        "equal": ({"s": 1}, []),
        "median": ({}, ["s"]),
        "trimmed_mean": ({}, ["s"]),
    }
    assert sent["weighted"] is given
