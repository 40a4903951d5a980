"""k-FED's two halves: clusters of one client, and of all clients' centroids."""

import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.decomposition import TruncatedSVD
from torch import Tensor

from coterie.clustering.kmeans import kmeans, nearest_centroids
from coterie.clustering.one_shot import farthest_first, projected, projected_kmeans, trusted_means
from coterie.errors import DataError
from tests.builders.vectors import slow_farthest

POINTS = torch.from_numpy(load_digits().data[:300]).float() / 16


def test_the_projection_is_onto_the_first_singular_vectors() -> None:
    found = projected(POINTS, 5)
    assert found.shape == (300, 5)
    expected = TruncatedSVD(5, algorithm="arpack").fit_transform(POINTS.numpy())
    distances = torch.cdist(found.double(), found.double())
    slow = torch.cdist(torch.from_numpy(expected).double(), torch.from_numpy(expected).double())
    torch.testing.assert_close(distances, slow, atol=1e-4, rtol=1e-4)


def test_of_fewer_points_than_dimensions_it_is_the_same_projection() -> None:
    """By the other Gram matrix."""
    few = POINTS[:30]
    found, expected = projected(few, 5), TruncatedSVD(5, algorithm="arpack").fit_transform(few)
    torch.testing.assert_close(
        torch.cdist(found.double(), found.double()),
        torch.cdist(torch.from_numpy(expected).double(), torch.from_numpy(expected).double()),
        atol=1e-4,
        rtol=1e-4,
    )


@pytest.mark.parametrize("shape", [(300, 64), (20, 64), (64, 64)])
def test_of_full_rank_it_keeps_every_distance(shape: tuple[int, int]) -> None:
    points = POINTS[: shape[0]]
    found = projected(points, 64)
    torch.testing.assert_close(
        torch.cdist(found.double(), found.double()),
        torch.cdist(points.double(), points.double()),
        atol=1e-4,
        rtol=1e-4,
    )


def slow_trusted(points: Tensor, seen: Tensor, starts: Tensor) -> list[list[float]]:
    """θ_r = mean of A_i over S_r = {i: ‖Â_i − ν_r‖ ≤ ⅓ ‖Â_i − ν_s‖ for every s ≠ r}."""
    found = []
    for r in range(len(starts)):
        others = [s for s in range(len(starts)) if s != r]
        own = [
            i
            for i in range(len(points))
            if all((seen[i] - starts[r]).norm() <= (seen[i] - starts[s]).norm() / 3 for s in others)
        ]
        if not own:
            near = [(seen[i] - starts).norm(dim=1).argmin().item() for i in range(len(points))]
            own = [i for i, which in enumerate(near) if which == r]
        found.append(points[own].mean(dim=0).tolist())
    return found


def test_means_are_of_points_three_times_nearer_than_to_any_other() -> None:
    seen = projected(POINTS, 4)
    starts = kmeans(seen, 4, seed=0).centroids
    expected = torch.tensor(slow_trusted(POINTS, seen, starts))
    torch.testing.assert_close(trusted_means(POINTS, seen, starts), expected)
    # Starts in pairs: no point is three times nearer to one of a pair.
    pairs = torch.cat([starts[:2], starts[:2] + 1e-3])
    expected = torch.tensor(slow_trusted(POINTS, seen, pairs))
    torch.testing.assert_close(trusted_means(POINTS, seen, pairs), expected)


def blobs(seed: int, centres: int, each: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    means = 20 * torch.eye(centres, 30)
    noise = torch.randn(centres * each, 30, generator=generator)
    return means, means.repeat_interleave(each, dim=0) + noise


def test_well_parted_clusters_are_found_exactly() -> None:
    _, points = blobs(0, 6, 20)
    found = projected_kmeans(points, 6, seed=3, restarts=5)
    groups = found.assignments.reshape(6, 20)
    assert bool((groups == groups[:, :1]).all())
    assert len(set(groups[:, 0].tolist())) == 6
    means = torch.stack([points[20 * g : 20 * g + 20].mean(dim=0) for g in range(6)])
    torch.testing.assert_close(found.centroids[groups[:, 0]], means)
    again = projected_kmeans(points, 6, seed=3, restarts=5)
    assert torch.equal(again.centroids, found.centroids)


def test_it_is_k_means_among_projections_then_among_points_from_trusted_means() -> None:
    seen = projected(POINTS, 7)
    starts = kmeans(seen, 7, seed=1, restarts=3).centroids
    expected = kmeans(POINTS, 7, seed=1, init=trusted_means(POINTS, seen, starts))
    found = projected_kmeans(POINTS, 7, seed=1, restarts=3)
    assert torch.equal(found.centroids, expected.centroids)
    straight = kmeans(POINTS, 7, seed=1, restarts=3).centroids
    assert not torch.equal(found.centroids, straight)


def test_it_ends_in_a_fixed_point_of_lloyds_algorithm_on_the_points_themselves() -> None:
    found = projected_kmeans(POINTS, 7, seed=1, restarts=3)
    assert torch.equal(nearest_centroids(POINTS, found.centroids), found.assignments)
    means = torch.stack([POINTS[found.assignments == j].mean(dim=0) for j in range(7)])
    torch.testing.assert_close(found.centroids, means, atol=1e-5, rtol=1e-4)


def test_as_many_points_as_clusters_are_their_own_centroids() -> None:
    found = projected_kmeans(POINTS[:4], 4, seed=0, restarts=2)
    assert sorted(found.centroids.tolist()) == sorted(POINTS[:4].tolist())


@pytest.mark.parametrize("first", [1, 3, 9])
def test_seeds_are_one_clients_and_then_the_farthest(first: int) -> None:
    points = POINTS[:40]
    expected = slow_farthest(points.tolist(), 9, list(range(first)))
    assert torch.equal(farthest_first(points, 9, first), points[expected])


def test_of_more_than_are_wanted_the_first_are_taken() -> None:
    assert torch.equal(farthest_first(POINTS, 3, 5), POINTS[:3])


def test_too_few_to_choose_from_are_refused() -> None:
    with pytest.raises(DataError, match="k=5: seeds are chosen from only 4 centroids; lower k"):
        farthest_first(POINTS[:4], 5, 2)
