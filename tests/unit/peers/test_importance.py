"""The identities of importance sampling: what a probability of any data has to be."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from coterie.peers.choosing import draw, draw_uniformly, nearest_to_centroids
from coterie.peers.embeddings_importance import embedding_importance, embedding_scores
from coterie.peers.samples_importance import cluster_weights, sample_importance

SEEDS = st.integers(0, 2**31)


def some(n: int, m: int, k: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Embeddings of candidates and reserve, and their clusters; some may be empty."""
    g = torch.Generator().manual_seed(seed)
    z, reserve = torch.randn(n, 3, generator=g), torch.randn(m, 3, generator=g)
    return z, reserve, torch.randint(k, (n,), generator=g), torch.randint(k, (m,), generator=g)


@given(
    n=st.integers(1, 30),
    m=st.integers(1, 12),
    k=st.integers(1, 8),
    seed=SEEDS,
    temperature=st.one_of(st.floats(0, 1e6), st.just(math.inf)),
)
def test_explicit_probabilities_sum_to_one(
    n: int, m: int, k: int, seed: int, temperature: float
) -> None:
    z, _, own, foreign = some(n, m, k, seed)
    p = sample_importance(z[:, 0].clamp_min(0), own, foreign, temperature)
    assert p.dtype == torch.float64
    assert bool((p >= 0).all())
    assert float(p.sum()) == pytest.approx(1, abs=1e-12)


@given(
    n=st.integers(1, 30),
    m=st.integers(1, 12),
    k=st.integers(1, 8),
    seed=SEEDS,
    form=st.sampled_from(["intent", "literal"]),
    scale=st.sampled_from([1e-6, 1.0, 1e3]),
)
def test_implicit_probabilities_sum_to_one(
    n: int, m: int, k: int, seed: int, form: str, scale: float
) -> None:
    z, reserve, own, foreign = some(n, m, k, seed)
    p = embedding_importance(scale * z, own, scale * reserve, foreign, form=form)
    assert bool((p >= 0).all())
    assert float(p.sum()) == pytest.approx(1, abs=1e-12)


def test_clusters_of_reserve_samples_only_get_nothing() -> None:
    own, foreign = torch.tensor([0, 0, 2]), torch.tensor([1, 1, 2, 3])
    weights = cluster_weights(own, foreign)
    assert weights.tolist() == pytest.approx([1 / 1.5, 0, 0.5 / 1.5, 0], abs=1e-15)


def test_without_a_temperature_a_cluster_is_uniform() -> None:
    z, _, own, foreign = some(20, 8, 4, 5)
    p = sample_importance(z[:, 0], own, foreign, 0.0)
    macro, counts = cluster_weights(own, foreign), own.bincount()
    torch.testing.assert_close(p, macro[own] / counts[own], rtol=0, atol=1e-15)


def test_an_infinite_temperature_is_uniform_over_each_clusters_maximisers() -> None:
    losses = torch.tensor([0.0, 0.0, 2.0, 2.0, 1.0])
    own, foreign = torch.tensor([0, 0, 1, 1, 1]), torch.tensor([0, 1])
    macro = cluster_weights(own, foreign)
    wanted = torch.stack([macro[0] / 2, macro[0] / 2, macro[1] / 2, macro[1] / 2, 0 * macro[0]])
    found = sample_importance(losses, own, foreign, math.inf)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-15)
    high = sample_importance(losses, own, foreign, 1e4)
    torch.testing.assert_close(high, wanted, rtol=0, atol=1e-15)


def test_single_points_have_no_score_and_count_by_their_clusters() -> None:
    z, reserve, _, foreign = some(4, 3, 2, 0)
    alone = embedding_importance(z, torch.arange(4), reserve, foreign, form="intent")
    torch.testing.assert_close(
        alone, torch.full((4,), 0.25, dtype=torch.float64), rtol=0, atol=1e-15
    )
    same = embedding_importance(
        torch.ones(5, 3), torch.tensor([0, 0, 0, 1, 1]), reserve, foreign, form="literal"
    )
    torch.testing.assert_close(same, torch.full((5,), 0.2, dtype=torch.float64), rtol=0, atol=1e-15)


def test_pairs_are_as_far_from_their_centroids_whatever_the_rounding() -> None:
    z, reserve, _, foreign = some(8, 3, 2, 1)
    pairs = torch.arange(8) // 2
    assert embedding_scores(z, pairs, reserve, "intent").tolist() == [0.0] * 8
    p = embedding_importance(z, pairs, reserve, foreign, form="intent")
    torch.testing.assert_close(p, torch.full((8,), 0.125, dtype=torch.float64), rtol=0, atol=1e-15)


def test_the_two_forms_rank_the_other_way_round() -> None:
    """On a line: the reserve at 0, a cluster at 1, 2, 3 with its centroid at 2."""
    z, own = torch.tensor([[1.0], [2.0], [3.0]]), torch.zeros(3, dtype=torch.int64)
    reserve = torch.zeros(2, 1)
    assert embedding_scores(z, own, reserve, "literal").tolist() == [2.0, 0.0, 18.0]
    assert embedding_scores(z, own, reserve, "intent").tolist() == [0.0, 10.0, 0.0]


def test_overlap_far_beyond_what_a_density_can_hold() -> None:
    z = torch.tensor([[0.0], [1.0], [100.0], [103.0]])
    own, reserve = torch.tensor([0, 0, 1, 1]), torch.tensor([[500.0]])
    p = embedding_importance(
        z, own, reserve, torch.zeros(1, dtype=torch.int64), form="literal", deviation=0.01
    )
    assert float(p.sum()) == pytest.approx(1, abs=1e-12)
    assert p[2:].sum() == 1  # nearer to b = 0 by far, although both densities underflow


@pytest.mark.parametrize("seed", range(5))
def test_overlaps_that_differ_by_rounding_alone_are_the_same(seed: int) -> None:
    """A cluster and its reflection at a point, from a reserve that is its own reflection."""
    g = torch.Generator().manual_seed(seed)
    half, r = torch.randn(6, 16, generator=g) + 1, torch.randn(3, 16, generator=g)
    point = torch.randn(16, generator=g)
    z, own = torch.cat([half, -half]) + point, torch.arange(12) // 6
    foreign = torch.zeros(6, dtype=torch.int64)
    p = embedding_importance(z, own, torch.cat([r, -r]) + point, foreign, form="intent")
    torch.testing.assert_close(p[:6].sum(), p[6:].sum(), rtol=1e-4, atol=0)


def test_a_denormal_probability_is_none() -> None:
    """`torch.multinomial` divides by draws that underflow, and returns what cannot be."""
    p = torch.tensor([1.0, 5e-324, 0.0, 0.0], dtype=torch.float64)
    for seed in range(50):
        assert draw(p, 2, torch.Generator().manual_seed(seed)).tolist() == [0]


@given(n=st.integers(1, 20), count=st.integers(0, 25), seed=SEEDS)
def test_never_more_are_drawn_than_can_be(n: int, count: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    p = torch.rand(n, dtype=torch.float64, generator=g) * (torch.rand(n, generator=g) > 0.5)
    chosen = draw(p, count, g)
    assert len(chosen) == len(set(chosen.tolist())) == min(count, int((p > 0).sum()))
    assert bool((p[chosen] > 0).all())
    plain = draw_uniformly(n, count, g)
    assert len(plain) == len(set(plain.tolist())) == min(n, count)


def test_what_is_drawn_follows_the_probabilities() -> None:
    p, g = torch.tensor([0.7, 0.0, 0.2, 0.1], dtype=torch.float64), torch.Generator().manual_seed(0)
    counts = torch.cat([draw(p, 1, g) for _ in range(4000)]).bincount(minlength=4) / 4000
    torch.testing.assert_close(counts.double(), p, rtol=0, atol=0.02)


def test_the_points_nearest_to_centroids() -> None:
    g = torch.Generator().manual_seed(1)
    centres = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    ring = torch.tensor([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    points = (centres[:, None] + ring).reshape(-1, 2) + 1e-4 * torch.rand(15, 2, generator=g)
    found = nearest_to_centroids(points, 3, seed=0, restarts=5)
    assert sorted(found.tolist()) == [0, 5, 10]
    assert sorted(nearest_to_centroids(points[:4], 9, seed=0, restarts=1).tolist()) == [0, 1, 2, 3]
    same = nearest_to_centroids(torch.ones(4, 2), 3, seed=0, restarts=1)
    assert len(set(same.tolist())) == 3
    assert len(nearest_to_centroids(points, 0, seed=0, restarts=1)) == 0
