"""What exact sums refuse: nothing of it is folded, and the order does not matter."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.aggregation.exact import ExactMeans, Layout
from coterie.contract.phase import WeightedUpdate
from coterie.errors import ContractError, RunError
from tests.builders.sums import fold, mean_of

LARGEST = 2.0**24
WEIGHT_LIMIT = 2**23
VALUES = st.floats(-LARGEST, LARGEST, width=32)


@pytest.mark.parametrize(
    ("tensor", "weight", "sentence"),
    [
        (torch.tensor([1.0, torch.nan]), 1, "Slot 'b' has a value of nan; training diverged"),
        (torch.tensor([1.0, -torch.inf]), 1, "Slot 'b' has a value of inf; training diverged"),
        (torch.tensor([1.0, -(2.0**24) - 2]), 1, "Slot 'b' has a value of 1.68e+07; training"),
        (torch.ones(2), 0, "Slot 'b' has weight 0; give a positive int"),
        (torch.ones(2), -3, "Slot 'b' has weight -3; give a positive int"),
        (torch.ones(2), 2.5, "Slot 'b' has weight 2.5; give a positive int"),
    ],
)
def test_what_is_refused_leaves_nothing_in_any_slot(tensor, weight, sentence):
    means = ExactMeans({s: Layout.of({"w": torch.zeros(2)}) for s in ("a", "b", "c")})
    good = {"a": WeightedUpdate(weight=2, tensors={"w": torch.ones(2)})}
    means.add(0, good)
    bad = WeightedUpdate(weight=weight, tensors={"w": tensor})
    other = WeightedUpdate(weight=1, tensors={"w": torch.ones(2)})
    with pytest.raises(ContractError) as caught:
        means.add(0, {**good, "b": bad, "c": other})
    assert sentence in str(caught.value)
    assert list(means.result()) == ["a"]
    assert means.result()["a"].weight == 2


def test_the_largest_value_is_still_taken():
    assert mean_of(fold([([LARGEST, -LARGEST, 0], 100)])).tolist() == [LARGEST, -LARGEST, 0]


@pytest.mark.parametrize("kind", [torch.int64, torch.bool, torch.uint8])
def test_integers_are_refused_with_the_remedy(kind):
    with pytest.raises(ContractError) as caught:
        Layout.of({"w": torch.zeros(1), "count": torch.zeros(1).to(kind)})
    assert str(caught.value) == (f"'count' is {kind} and cannot be averaged; give it another role.")


def raises_run_error(contributions, cut):
    try:
        means = fold(contributions[:cut])
        means.merge(fold(contributions[cut:]).sums)
    except RunError:
        return True
    return False


# Weight times value reaches the limit of 2^42 just so; a float would round the nudge away.
AT_LIMIT = [([2.0**23, 0.0, 0.0], 2**18), ([-(2.0**23), 0.0, 0.0], 2**18 - 1), ([2.0**22] * 3, 2)]
NUDGE = ([2.0**-20, 0.0, 0.0], 1)


@pytest.mark.parametrize(
    ("contributions", "refused"),
    [
        (AT_LIMIT, False),
        ([*AT_LIMIT, NUDGE], True),
        ([([LARGEST, 0, 0], 2**17), ([-LARGEST, 0, 0], 2**17)], False),
        ([([LARGEST, 0, 0], 2**17), ([-LARGEST, 0, 0], 2**17), NUDGE], True),
        ([([0.1, 0, 0], 2**22), ([0.2, 0, 0], 2**22)], False),
        ([([0.1, 0, 0], 2**22), ([0.2, 0, 0], 2**22), ([0.0, 0, 0], 1)], True),
    ],
)
def test_a_sum_out_of_range_is_an_error_in_every_order_or_in_none(contributions, refused):
    found = {
        raises_run_error(list(order), cut)
        for order in itertools.permutations(contributions)
        for cut in range(len(contributions) + 1)
    }
    assert found == {refused}


@settings(max_examples=60)
@given(
    st.lists(st.tuples(VALUES, st.integers(1, 2**18)), min_size=2, max_size=5),
    st.randoms(use_true_random=False),
)
def test_whether_a_sum_is_out_of_range_does_not_depend_on_the_order(values, random):
    contributions = [([value, 0.0, 0.0], weight) for value, weight in values]
    first = raises_run_error(contributions, len(contributions))
    random.shuffle(contributions)
    assert raises_run_error(contributions, random.randrange(len(contributions))) == first


def test_errors_of_range_name_the_limit_and_a_refused_merge_changes_nothing():
    means = fold([([1.0, 2.0, 3.0], WEIGHT_LIMIT)])
    with pytest.raises(
        RunError, match=f"Weights sum to {WEIGHT_LIMIT + 1}, and at most {WEIGHT_LIMIT}"
    ):
        means.merge(fold([([5.0] * 3, 1)]).sums)
    assert mean_of(means).tolist() == [1.0, 2.0, 3.0]
    means = fold([([LARGEST] * 3, 2**18)])
    with pytest.raises(RunError, match=r"Weighted values sum to 4\.4e\+12, and at most 4\.4e\+12"):
        means.add(0, {"s": WeightedUpdate(weight=1, tensors={"w": torch.ones(3)})})
