"""Steps of k-means from sums: means, splits of clusters, inertia, and draws from moments."""

import numpy as np
import pytest
import torch

from coterie.clustering.exact_kmeans import ClusterSums, Moments, grown, moved
from coterie.clustering.lattice import cluster_sums, nearest, off_lattice, on_lattice, products
from coterie.errors import DataError


def sums_of(x: torch.Tensor, centroids: torch.Tensor) -> ClusterSums:
    return ClusterSums(cluster_sums(x, nearest(x, centroids), len(centroids)))


@pytest.fixture
def x() -> torch.Tensor:
    generator = np.random.default_rng(0)
    groups = generator.normal(size=(4, 3)) * 4
    return on_lattice(torch.from_numpy(groups.repeat(50, 0) + generator.normal(size=(200, 3)) / 4))


def test_the_step_is_lloyds(x: torch.Tensor) -> None:
    start = x[::60]
    sums, assigned = sums_of(x, start), nearest(x, start)
    values = off_lattice(x)
    means = torch.stack([values[assigned == c].mean(dim=0) for c in range(len(start))])
    assert torch.equal(moved(sums, np.random.default_rng(0)), on_lattice(means))
    away = (values - off_lattice(start)[assigned]).square().sum()
    assert sums.inertia(start) == pytest.approx(float(away), rel=1e-12)
    scatter = [(values[assigned == c] - means[c]).square().sum() for c in range(len(start))]
    torch.testing.assert_close(sums.scatter, torch.stack(scatter))


def test_an_empty_cluster_takes_half_of_the_one_of_largest_inertia(x: torch.Tensor) -> None:
    far = on_lattice(torch.full((1, 3), 500.0))
    start = torch.cat([on_lattice(off_lattice(x).mean(0))[None], far])
    sums = sums_of(x, start)
    assert sums.counts.tolist() == [200, 0]
    after = moved(sums, np.random.default_rng(0))
    assert sorted(sums_of(x, after).counts.tolist())[0] > 0
    middle = off_lattice(after).mean(dim=0)
    torch.testing.assert_close(middle, sums.means[0], atol=1e-3, rtol=0)


def test_empty_clusters_that_none_can_fill_copy_a_mean() -> None:
    one = torch.tensor([[30.0, 40.0, 2500.0, 1.0]])
    columns = torch.cat([torch.zeros(2, 4), one, torch.zeros(1, 4)]).double()
    next_ = off_lattice(moved(ClusterSums(columns), np.random.default_rng(0)))
    assert next_.tolist() == [[30.0, 40.0]] * 4
    columns[2] *= 2  # two points: it can be split once
    columns[2, 2] += 100
    next_ = off_lattice(moved(ClusterSums(columns), np.random.default_rng(0)))
    assert next_[[1, 3]].tolist() == [[30.0, 40.0]] * 2
    torch.testing.assert_close(next_[0] + next_[2], torch.tensor([60.0, 80.0]).double())


def test_growth_splits_large_clusters_and_leaves_small_ones(x: torch.Tensor) -> None:
    start = x[[0, 60, 120, 160]]
    sums = sums_of(x, start)
    assert len(grown(sums, 7, 10, np.random.default_rng(0))) == 7
    assert len(grown(sums, 8, 10_000, np.random.default_rng(0))) == 4
    generator = np.random.default_rng(0)
    centroids = grown(sums, 8, 2, generator)
    assert sums_of(x, centroids).inertia(centroids) < sums.inertia(start)


def test_draws_of_data_up_to_the_lattices_end_lie_on_it() -> None:
    ends = torch.tensor([[-512.0], [512.0]]).double()
    moments = Moments.of(torch.tensor(2.0), ends.sum(0), ends.T @ ends)
    assert off_lattice(moments.draws(100, np.random.default_rng(0))).abs().max() == 512


def test_draws_have_the_moments_of_the_samples(x: torch.Tensor) -> None:
    values = off_lattice(x)
    moments = Moments.of(torch.tensor(200.0), values.sum(0), products(x))
    torch.testing.assert_close(moments.covariance, torch.cov(values.T, correction=0))
    drawn = off_lattice(moments.draws(20_000, np.random.default_rng(0)))
    torch.testing.assert_close(drawn.mean(0), moments.mean, atol=0.2, rtol=0)
    torch.testing.assert_close(torch.cov(drawn.T), moments.covariance, atol=0.6, rtol=0.05)
    diagonal = Moments.of(torch.tensor(200.0), values.sum(0), values.square().sum(0))
    torch.testing.assert_close(diagonal.covariance, moments.covariance.diagonal())
    spread = off_lattice(diagonal.draws(20_000, np.random.default_rng(0))).var(0)
    torch.testing.assert_close(spread, diagonal.covariance, atol=0.6, rtol=0.05)


def test_no_samples_are_told() -> None:
    with pytest.raises(DataError, match="No client sent a sample"):
        Moments.of(torch.tensor(0.0), torch.zeros(2), torch.zeros(2, 2))
