"""Clipped updates: without a client, the integer sums differ by no more than is claimed."""

import math
from fractions import Fraction

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.aggregation.clipping import STEPS, clipped
from coterie.aggregation.exact import ExactMeans, Layout
from coterie.contract.phase import WeightedUpdate

SERVER = {
    "encoder": {"weight": torch.tensor([[0.5, -2.0], [1e-3, 7.0]]), "bias": torch.tensor([1.0])},
    "norm": {"running_mean": torch.tensor([0.0, 3.0]), "scale": torch.tensor([1.0])},
}
LAYOUTS = {slot: Layout.of(tensors) for slot, tensors in SERVER.items()}
SIZES = st.sampled_from([1e-7, 1e-3, 1.0, 1e4])
SEEDS = st.integers(0, 2**31)
CLIPS = st.sampled_from([1e-3, 0.1, 1.0, 17.3, 1000.0])


def contribution(seed, size):
    generator = torch.Generator().manual_seed(seed)
    return {
        slot: WeightedUpdate(
            weight=1 + seed % 7,
            tensors={k: v + size * torch.randn(v.shape, generator=generator) for k, v in t.items()},
        )
        for slot, t in SERVER.items()
    }


def limbs(clients, steps):
    sums = ExactMeans(LAYOUTS)
    for client in clients:
        sums.add(0, clipped(contribution(*client), SERVER, LAYOUTS, steps))
    zeros = {slot: layout.zeros() for slot, layout in LAYOUTS.items()}
    found = {slot: sums.sums.get(slot, zeros[slot]) for slot in LAYOUTS}
    assert all(not limb.low.any() for limb in found.values())
    return torch.cat([found[slot].high.long() for slot in sorted(found)])


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(SEEDS, SIZES), max_size=4), st.tuples(SEEDS, SIZES), CLIPS)
def test_sums_with_and_without_a_client_differ_by_the_sensitivity(others, one, clip):
    steps = math.floor(clip * STEPS)
    difference = limbs([*others, one], steps) - limbs(others, steps)
    assert sum(int(x) ** 2 for x in difference) <= steps**2
    assert Fraction(steps, STEPS) <= Fraction(clip)


@settings(deadline=None, max_examples=40)
@given(SEEDS, st.sampled_from([1e-7, 1e-3, 1.0]))
def test_a_small_update_is_kept_to_the_lattice(seed, size):
    sent = contribution(seed, size)
    found = clipped(sent, SERVER, LAYOUTS, 2**30)
    for slot, mean in found.items():
        assert mean.weight == 1
        for name, value in mean.tensors.items():
            if name.startswith("running_"):
                assert not value.any()
                continue
            exact = sent[slot].tensors[name].double() - SERVER[slot][name].double()
            assert (value - exact).abs().max() < 1 / STEPS
            assert (value.abs() <= exact.abs()).all()


def test_a_large_update_keeps_its_direction_and_has_the_whole_norm():
    sent, clip = contribution(3, 50.0), 2.0
    found = clipped(sent, SERVER, LAYOUTS, math.floor(clip * STEPS))
    learned = [(s, n) for s in SERVER for n in SERVER[s] if n != "running_mean"]
    update = torch.cat([found[s].tensors[n].reshape(-1) for s, n in learned])
    whole = torch.cat([(sent[s].tensors[n] - SERVER[s][n]).reshape(-1) for s, n in learned])
    assert 2.0 - 1e-5 < float(update.norm()) <= 2.0
    expected = 2 * whole.double() / whole.double().norm()
    torch.testing.assert_close(update, expected, atol=1e-5, rtol=0)


def test_an_update_of_nothing_is_nothing():
    sent = {slot: WeightedUpdate(weight=3, tensors=tensors) for slot, tensors in SERVER.items()}
    found = clipped(sent, SERVER, LAYOUTS, STEPS)
    assert not any(v.any() for mean in found.values() for v in mean.tensors.values())
