"""Exact sums: any order and grouping gives the same bits, and those of the rational mean."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from coterie.aggregation.exact import ExactMeans, Layout, narrowed
from coterie.contract.phase import WeightedUpdate
from tests.builders.sums import bits, fold, mean_of, means_of

LARGEST = 2.0**24
VALUES = st.floats(-LARGEST, LARGEST, width=32)
SMALL = st.floats(-8.0, 8.0, width=32)
WEIGHTS = st.integers(1, 5000)
CONTRIBUTIONS = st.lists(st.tuples(st.lists(SMALL, min_size=3, max_size=3), WEIGHTS), min_size=1)


def rational(contributions, element):
    total = sum(weight for _, weight in contributions)
    return sum(Fraction(v[element]) * w for v, w in contributions) / total


@given(CONTRIBUTIONS, st.randoms(use_true_random=False), st.integers(1, 5))
def test_neither_order_nor_grouping_changes_a_bit(contributions, random, workers):
    expected = fold(contributions)
    shuffled = contributions.copy()
    random.shuffle(shuffled)
    shares = [[] for _ in range(workers)]
    for contribution in shuffled:
        shares[random.randrange(workers)].append(contribution)
    merged = means_of({"w": torch.zeros(3)})
    for share in shares:
        merged.merge(fold(share).sums)
    assert bits(mean_of(merged)) == bits(mean_of(expected))
    assert merged.result()["s"].weight == expected.result()["s"].weight
    for limb in ("high", "low", "weight", "bound"):
        one, other = getattr(merged.sums["s"], limb), getattr(expected.sums["s"], limb)
        assert torch.equal(torch.as_tensor(one), torch.as_tensor(other))


def test_every_order_of_four_and_every_split_in_two():
    given = [
        ([0.1, 1e-4, -3.3], 7),
        ([1e-7, -1e-4, 2.0], 1),
        ([5.5, 3.0, -1.0], 450),
        ([-5, 0, 9], 3),
    ]
    found = set()
    for order in itertools.permutations(given):
        for cut in range(5):
            means = fold(order[:cut])
            means.merge(fold(order[cut:]).sums)
            found.add(tuple(bits(mean_of(means))))
    assert len(found) == 1


def test_a_naive_float32_sum_does_depend_on_the_order():
    # So that the tests above have something to find.
    values = np.random.default_rng(0).normal(size=(20, 50)).astype(np.float32)
    forth, back = values[0].copy(), values[-1].copy()
    for row in values[1:]:
        forth += row
    for row in values[-2::-1]:
        back += row
    assert (forth != back).any()


@given(VALUES, st.lists(WEIGHTS, min_size=1, max_size=20))
def test_copies_of_a_value_average_to_just_it(value, weights):
    assume(abs(value) > 2.0**-36 or value == 0)
    mean = mean_of(fold([([value, -value, 0.0], weight) for weight in weights]))
    assert mean.tolist() == [value, -value, 0.0]


@given(st.floats(-(2.0**-36), 2.0**-36, width=32), st.lists(WEIGHTS, min_size=1, max_size=20))
def test_a_tiny_value_averages_to_itself_but_for_two_to_the_minus_sixty(value, weights):
    mean = mean_of(fold([([value] * 3, weight) for weight in weights]))
    assert all(abs(Fraction(m) - Fraction(value)) <= Fraction(1, 2**60) for m in mean.tolist())


@given(CONTRIBUTIONS)
def test_the_float32_mean_is_within_one_ulp_of_the_rational_one(contributions):
    mean = mean_of(fold(contributions))
    for element in range(3):
        exact = rational(contributions, element)
        nearest = np.float32(float(exact))
        found = np.float32(mean[element].item())
        allowed = max(float(np.spacing(np.abs(nearest))), 2.0**-60)
        assert abs(float(found) - float(nearest)) <= allowed


@given(st.lists(st.tuples(st.lists(st.floats(-8, 8), min_size=3, max_size=3), WEIGHTS), min_size=1))
def test_the_float64_mean_is_the_rational_one_but_for_two_to_the_minus_fifty(contributions):
    mean = mean_of(fold(contributions, torch.float64))
    for element in range(3):
        error = abs(Fraction(mean[element].item()) - rational(contributions, element))
        # 2^-61 of quantisation, 2^-51 of rounding the result below 8.
        assert error <= Fraction(1, 2**61) + Fraction(1, 2**51)


@example([1.03125, 1.03125, 1.09375, 1.96875, 1.015625, 1.0078125, 1.0078125, 3 * 2.0**-24], 1)
@given(st.lists(st.floats(-100, 100, width=16), min_size=1, max_size=9), WEIGHTS)
def test_bfloat16_is_summed_exactly_and_rounded_once(values, weight):
    tensors = [torch.tensor([v] * 3, dtype=torch.bfloat16) for v in values]
    means = means_of({"w": tensors[0]})
    for tensor in tensors:
        means.add(0, {"s": WeightedUpdate(weight=weight, tensors={"w": tensor})})
    mean = mean_of(means)
    exact = float(sum(Fraction(t[0].item()) for t in tensors) / len(tensors))
    assert mean.dtype is torch.bfloat16
    ulp = 2.0 ** (math.frexp(exact)[1] - 8) if exact else 0.0
    assert abs(mean[0].item() - exact) <= max(0.5 * ulp, 2.0**-60)


def test_weights_near_a_ten_thousandth_survive_being_averaged_with_themselves():
    torch.manual_seed(0)
    values = torch.randn(10_000) * 1e-4
    means = means_of({"w": values})
    for weight in (1, 359, 1797):
        means.add(0, {"s": WeightedUpdate(weight=weight, tensors={"w": values})})
    assert torch.equal(mean_of(means), values)


def test_a_hand_computed_mean_keeps_shapes_and_weight():
    tensors = {"w": torch.tensor([[1.0, 2.0]]), "b": torch.tensor(-1.5), "none": torch.zeros(0)}
    means = means_of(tensors)
    means.add(0, {"s": WeightedUpdate(weight=1, tensors=tensors)})
    means.add(0, {"s": WeightedUpdate(weight=3, tensors={k: v * 5 for k, v in tensors.items()})})
    [(slot, mean)] = means.result().items()
    assert (slot, mean.weight) == ("s", 4)
    assert mean.tensors["w"].tolist() == [[4.0, 8.0]]
    assert (mean.tensors["b"].item(), mean.tensors["b"].shape) == (-6.0, ())
    assert mean.tensors["none"].shape == (0,)


def test_a_slot_that_nobody_contributed_to_is_absent():
    means = ExactMeans({s: Layout.of({"w": torch.zeros(1)}) for s in ("a", "b")})
    means.add(0, {"b": WeightedUpdate(weight=2, tensors={"w": torch.ones(1)})})
    assert list(means.result()) == ["b"]


def test_merging_leaves_the_other_sums_as_they_were():
    mine, other = fold([]), fold([([1.0] * 3, 1)])
    mine.merge(other.sums)
    mine.merge(fold([([3.0] * 3, 1)]).sums)
    assert mean_of(mine).tolist() == [2.0] * 3
    assert mean_of(other).tolist() == [1.0] * 3


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.lists(VALUES, min_size=3, max_size=3), st.integers(1, 2**12)), min_size=1)
)
def test_the_lanes_hold_the_integers_of_the_definition(contributions):
    sums = fold(contributions).sums["s"]
    for element in range(3):
        high = low = 0
        for values, weight in contributions:
            value = Fraction(values[element]) * 2**20
            high += weight * round(value)
            low += weight * round((value - round(value)) * 2**40)
        assert (int(sums.high[element]), int(sums.low[element])) == (high, low)


@pytest.mark.parametrize(
    ("value", "weights", "kind"),
    [
        (1.0, (2**14,), torch.float64),
        (1.0, (2**13, 2**13), torch.float64),
        (1.0, (2**14, 1), torch.int64),
        (LARGEST, (2**9,), torch.float64),
        (LARGEST, (2**8, 2**8, 1), torch.int64),
    ],
)
def test_sums_beyond_the_integers_of_float64_go_on_in_int64(value, weights, kind):
    # 2^-21 - 2^-60 makes the lower limb as large as it gets, and odd.
    values = [value, 2.0**-21 - 2.0**-60, -value]
    for order in itertools.permutations(weights):
        means = fold([(values, weight) for weight in order], torch.float64)
        assert means.sums["s"].high.dtype == means.sums["s"].low.dtype == kind
        merged = fold([(values, order[0])], torch.float64)
        merged.merge(fold([(values, weight) for weight in order[1:]], torch.float64).sums)
        for found in (means, merged):
            total = sum(weights)
            high = [int(number) for number in found.sums["s"].high]
            assert high == [int(value) * 2**20 * total, 0, -int(value) * 2**20 * total]
            assert int(found.sums["s"].low[1]) == (2**39 - 1) * total


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@given(st.floats(-1000, 1000), st.sampled_from([0.0, 2.0**-40, -(2.0**-40)]))
def test_sixteen_bits_are_the_nearest_of_float64(dtype, value, off):
    """Next to the middle of two neighbours, where float32 cannot tell on which side a value is."""
    low = torch.tensor(value, dtype=torch.float64).to(dtype)
    high = torch.nextafter(low, torch.tensor(torch.inf, dtype=dtype))
    middle = (low.double() + high.double()) / 2
    exact = middle * (1 + off)
    found = narrowed(exact, dtype).item()
    nearer = {low.item()} if exact < middle else {high.item()}
    assert found in ({low.item(), high.item()} if exact == middle else nearer)
