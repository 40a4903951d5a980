"""Properties of the Dirichlet partitions: coverage, sizes, limits in alpha, variance."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.datamodules.dirichlet import dirichlet

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
@given(
    labels=label_arrays(),
    clients=st.integers(1, 10),
    alpha=st.sampled_from([1e-3, 0.1, 1.0, 1e5]),
    seed=seeds,
)
def test_dirichlet_with_equal_sizes(labels, clients, alpha, seed):
    clients = min(clients, len(labels))
    parts = dirichlet(labels, clients, alpha, seed, equal_sizes=True, min_samples=1)
    check_parts(parts, len(labels))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


@quick
@given(labels=label_arrays(min_each=20), clients=st.integers(1, 3), seed=seeds)
def test_dirichlet_covers_all_and_respects_min_samples(labels, clients, seed):
    # With at least 20 samples a hundred draws at α = 5 do not all leave a client below three.
    parts = dirichlet(labels, clients, 5.0, seed, min_samples=3)
    check_parts(parts, len(labels))
    assert len(parts) == clients
    assert min(len(part) for part in parts) >= 3


@pytest.mark.parametrize("equal_sizes", [False, True])
def test_dirichlet_draws_a_class_s_samples_at_random(equal_sizes):
    parts = dirichlet(np.zeros(1000, np.int64), 2, 1e5, 0, equal_sizes=equal_sizes)
    # About half of a client's rows lie in each half of the data; 6 deviations of at most 8.
    assert abs(np.count_nonzero(parts[0] < 500) - 250) < 48


@pytest.mark.parametrize("equal_sizes", [False, True])
def test_dirichlet_tends_to_iid(equal_sizes):
    sizes = np.array([1000, 500, 2000, 1500])
    labels = np.repeat(np.arange(4), sizes)
    parts = dirichlet(labels, 10, 1e5, 3, equal_sizes=equal_sizes)
    counts = counts_of(labels, parts)
    if equal_sizes:
        # A client draws 500 of 5,000: mean sizes/10, binomial deviations below sqrt(200) each.
        assert np.abs(counts - sizes / 10).max() < 6 * np.sqrt(200)
    else:
        # Proportions of mean 1/10 and deviation sqrt(0.09/1e6) = 3e-4.
        assert np.abs(counts / sizes - 0.1).max() < 3e-3


def test_dirichlet_tends_to_few_classes():
    labels = balanced(10, 1000)
    counts = counts_of(labels, dirichlet(labels, 100, 1e-3, 3, equal_sizes=True))
    assert (counts.sum(axis=1) == 100).all()
    held = (counts > 0).sum(axis=1)
    assert np.median(held) == 1
    assert held.mean() < 1.5
    # Without equal sizes, almost all of each class lands on one client.
    free = counts_of(labels, dirichlet(labels, 5, 1e-3, 3, min_samples=0))
    assert (free.max(axis=0) / free.sum(axis=0) > 0.99).mean() >= 0.9


def test_dirichlet_spreads_as_its_variance_says():
    # A share of Dir(α 1_K) has variance (1/K)(1 - 1/K)/(Kα + 1).
    alpha, clients, labels = 1.0, 10, balanced(10, 500)
    parts = [dirichlet(labels, clients, alpha, seed, min_samples=0) for seed in range(60)]
    shares = [counts_of(labels, found) / 500 for found in parts]
    assert np.var(shares) == pytest.approx(0.1 * 0.9 / (10 * alpha + 1), rel=0.12)


@pytest.mark.parametrize(
    ("classes", "clients", "alpha", "held"),
    # Mean of 30 seeds of the sampler in Orchestra's code; the paper's one draw: table 4.
    [
        (10, 100, 1e-3, 1.05),  # paper 1.08
        (10, 10, 0.1, 6.06),  # paper 6.25
        (10, 100, 0.1, 4.70),  # paper 4.69
        (100, 10, 0.1, 47.1),  # paper 48.63
        (100, 100, 0.1, 29.9),  # paper 29.3
    ],
)
def test_clients_have_as_many_classes_as_orchestra_s(classes, clients, alpha, held):
    labels = np.repeat(np.arange(classes), 50_000 // classes)
    parts = [dirichlet(labels, clients, alpha, seed, equal_sizes=True) for seed in range(3)]
    counts = np.stack([counts_of(labels, found) for found in parts])
    assert (counts > 0).sum(axis=2).mean() == pytest.approx(held, rel=0.06, abs=0.25)
