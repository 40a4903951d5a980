"""Properties of the partitions: what they cover, their sizes and classes, and their randomness."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.datamodules.dirichlet import dirichlet
from coterie.datamodules.partitions import (
    class_blocks,
    client_groups,
    grouped,
    iid,
    k_classes,
    p_mixture,
)
from coterie.errors import DataError

seeds = st.integers(0, 2**63 - 1)
quick = settings(max_examples=50)


@st.composite
def label_arrays(draw, max_classes=8, min_each=1, max_each=40):
    sizes = draw(st.lists(st.integers(min_each, max_each), min_size=1, max_size=max_classes))
    labels = np.repeat(np.arange(len(sizes)), sizes)
    return np.random.default_rng(draw(st.integers(0, 1000))).permutation(labels)


def balanced(classes, each, seed=0):
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(classes), each))


def check_parts(parts, size, cover=True):
    joined = np.concatenate(parts)
    assert all(part.dtype == np.int64 for part in parts)
    assert all((np.diff(part) > 0).all() for part in parts)
    assert len(np.unique(joined)) == len(joined)
    assert joined.size == 0 or (joined.min() >= 0 and joined.max() < size)
    if cover:
        assert len(joined) == size


def counts_of(labels, parts):
    return np.stack([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


@quick
@given(size=st.integers(1, 300), data=st.data(), seed=seeds)
def test_iid_covers_all_in_even_shares(size, data, seed):
    clients = data.draw(st.integers(1, size))
    parts = iid(size, clients, seed)
    check_parts(parts, size)
    sizes = [len(part) for part in parts]
    assert len(parts) == clients
    assert max(sizes) - min(sizes) <= 1


@quick
@given(blocks=st.integers(1, 5), width=st.integers(1, 4), each=st.integers(1, 9), seed=seeds)
def test_class_blocks_hold_all_of_their_consecutive_classes(blocks, width, each, seed):
    labels = balanced(blocks * width, each, seed)
    parts = class_blocks(labels, blocks)
    check_parts(parts, len(labels))
    for client, part in enumerate(parts):
        own = np.arange(client * width, (client + 1) * width)
        np.testing.assert_array_equal(part, np.flatnonzero(np.isin(labels, own)))


@quick
@given(labels=label_arrays(), p=st.floats(0, 1), seed=seeds)
def test_p_mixture_counts(labels, p, seed):
    classes, sizes = np.unique(labels, return_counts=True)
    clients = len(classes)
    parts = p_mixture(labels, clients, p, seed)
    check_parts(parts, len(labels))
    counts = counts_of(labels, parts)
    if p == 1:
        np.testing.assert_array_equal(counts, np.diag(sizes))
        return
    share, rest = divmod(len(labels), clients)
    for client in range(clients):
        own_share = share + (client < rest)
        assert len(parts[client]) == own_share
        assert counts[client, client] >= min(round(p * own_share), sizes[client])


def test_p_mixture_has_the_shares_of_ccfc():
    # 10 classes of 600: s = 600; p·s own, the other (1 - p)·s drawn from the left-overs, which are
    # (1 - p)·600 of every class, so a tenth of each is expected of each class.
    labels = np.repeat(np.arange(10), 600)
    for p in (0.0, 0.25, 0.5, 0.75):
        counts = counts_of(labels, p_mixture(labels, 10, p, 7))
        drawn = counts - np.diag(np.full(10, int(p * 600)))
        assert (counts.sum(axis=1) == 600).all()
        assert (drawn >= 0).all()
        expected = (1 - p) * 60
        assert abs(drawn.mean() - expected) < 1e-9
        # Hypergeometric: standard deviation below sqrt(60); 6 of them on each side.
        assert np.abs(drawn - expected).max() < 6 * np.sqrt(60)


@quick
@given(classes=st.integers(1, 8), clients=st.integers(1, 12), k=st.integers(1, 8), seed=seeds)
def test_k_classes_are_spread_evenly(classes, clients, k, seed):
    labels = balanced(classes, 30, seed % 1000)
    if k > classes or clients * k < classes:
        with pytest.raises(DataError, match=f"k={k}"):
            k_classes(labels, clients, k, seed)
        return
    parts = k_classes(labels, clients, k, seed)
    check_parts(parts, len(labels))
    counts = counts_of(labels, parts)
    assert ((counts > 0).sum(axis=1) == k).all()
    holders = (counts > 0).sum(axis=0)
    assert holders.max() - holders.min() <= 1
    for column in counts.T:
        held = column[column > 0]
        assert held.max() - held.min() <= 1


@quick
@given(clients=st.integers(3, 30), seed=seeds)
def test_grouped_gives_each_client_its_counts(clients, seed):
    groups = [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]]
    labels = balanced(10, 600, 1)
    parts = grouped(labels, clients, groups, (20, 20, 5, 5), seed)
    check_parts(parts, len(labels), cover=False)
    counts = counts_of(labels, parts)
    for group, row in zip(client_groups(clients, 3), counts, strict=True):
        assert sorted(row[groups[group]]) == [5, 5, 20, 20]
        assert row.sum() == 50


def test_grouped_draws_the_classes_of_the_larger_counts_at_random():
    labels = balanced(10, 2000)
    parts = grouped(labels, 60, [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]], (20, 20, 5, 5), 0)
    major = counts_of(labels, parts)[:20, :4] == 20
    # Each of four classes is a major one for half of 20 clients: 10 ± 2.2.
    assert (np.abs(major.sum(axis=0) - 10) <= 7).all()
    assert len({tuple(row) for row in major}) >= 4


@quick
@given(seed=seeds)
def test_clients_that_share_samples_need_no_more_than_one_of_them_wants(seed):
    groups = [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]]
    labels = balanced(10, 20, 1)  # 30 clients want up to 250
    with pytest.raises(
        DataError, match=r"clients=30, or let them share samples by partition.shared=true"
    ):
        grouped(labels, 30, groups, (20, 20, 5, 5), seed)
    parts = grouped(labels, 30, groups, (20, 20, 5, 5), seed, shared=True)
    for group, rows in zip(client_groups(30, 3), parts, strict=True):
        assert (np.diff(rows) > 0).all(), "a client has a sample once"
        held = np.bincount(labels[rows], minlength=10)
        assert sorted(held[groups[group]]) == [5, 5, 20, 20]
        assert held.sum() == 50
    assert len({tuple(rows) for rows in parts}) > 20, "each draws for itself"
    with pytest.raises(DataError, match=r"a client wants 21 samples of class 0, which has 20"):
        grouped(labels, 30, groups, (21, 21, 21, 21), seed, shared=True)


def test_a_group_names_a_class_once():
    with pytest.raises(DataError, match=r"the group \[0, 0, 1\] names a class twice"):
        grouped(balanced(4, 400), 6, [[1, 2, 3], [0, 0, 1]], (5, 5, 2), 0)


def test_p_mixture_of_one_is_a_class_each_whatever_its_size():
    labels = np.repeat(np.arange(3), [40, 10, 25])
    parts = p_mixture(labels, 3, 1.0, 0)
    np.testing.assert_array_equal(counts_of(labels, parts), np.diag([40, 10, 25]))


@pytest.mark.parametrize(
    "split",
    [
        lambda labels, seed: grouped(labels, 6, [[0, 1], [1, 2]], (9, 2), seed),
        lambda labels, seed: k_classes(labels, 5, 2, seed),
    ],
)
def test_a_seed_gives_train_and_test_set_the_same_classes(split):
    train, test = balanced(4, 300, 1), balanced(4, 60, 2)
    for seed in range(5):
        held_train = counts_of(train, split(train, seed))
        held_test = counts_of(test, split(test, seed))
        np.testing.assert_array_equal(held_train > 0, held_test > 0)


CASES = {
    "iid": lambda labels, seed: iid(len(labels), 5, seed),
    "p_mixture": lambda labels, seed: p_mixture(labels, 10, 0.5, seed),
    "dirichlet": lambda labels, seed: dirichlet(labels, 5, 0.5, seed),
    "dirichlet_equal": lambda labels, seed: dirichlet(labels, 5, 0.5, seed, equal_sizes=True),
    "k_classes": lambda labels, seed: k_classes(labels, 10, 3, seed),
    "grouped": lambda labels, seed: grouped(labels, 4, [[0, 1], [1, 2]], (5, 2), seed),
}


@pytest.mark.parametrize("name", CASES)
def test_same_seed_same_parts_other_seed_other_parts(name):
    labels, split = balanced(10, 60), CASES[name]
    first, again, other = split(labels, 1), split(labels, 1), split(labels, 2)
    for left, right in zip(first, again, strict=True):
        np.testing.assert_array_equal(left, right)
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))
