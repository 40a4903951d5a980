"""Properties of the class-stratified subsets that `limit` takes."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.datamodules.partitions import stratified_subset


@settings(max_examples=100)
@given(
    labels=st.lists(st.integers(0, 6), min_size=1, max_size=120),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**63 - 1),
)
def test_subsets_keep_the_proportions(labels, share, seed):
    labels = np.array(labels)
    count = max(1, round(share * len(labels)))
    rows = stratified_subset(labels, count, seed)
    assert (len(rows), rows.dtype) == (count, np.int64)
    assert (np.diff(rows) > 0).all()
    assert rows.min() >= 0
    assert rows.max() < len(labels)
    quota = count * np.bincount(labels) / len(labels)
    taken = np.bincount(labels[rows], minlength=len(quota))
    assert (np.abs(taken - quota) < 1).all()
    np.testing.assert_array_equal(rows, stratified_subset(labels, count, seed))


def test_the_largest_remainders_are_rounded_up():
    labels = np.repeat([0, 1, 2], [8, 5, 4])
    # Quotas 1.88, 1.18, 0.94.
    assert np.bincount(labels[stratified_subset(labels, 4, 0)]).tolist() == [2, 1, 1]


def test_the_seed_chooses_the_rows():
    labels = np.repeat([0, 1], 50)
    assert not np.array_equal(stratified_subset(labels, 20, 0), stratified_subset(labels, 20, 1))
