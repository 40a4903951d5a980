"""Fuzzy c-means against loops over its formulas, and its identities."""

import math

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from coterie.clustering import blocks
from coterie.clustering.fuzzy import FuzzyMeans, fuzzy_means, memberships
from coterie.errors import DataError

POINTS = torch.from_numpy(load_digits().data[:90]) / 16
CENTROIDS = POINTS[[3, 30, 60, 80]] + 0.01


def slow_memberships(points: Tensor, centroids: Tensor, fuzziness: float) -> list[list[float]]:
    """u_ij = 1 / Σ_l (‖x_i − c_j‖ / ‖x_i − c_l‖)^(2/(m−1))."""
    rows = []
    for x in points.tolist():
        away = [math.dist(x, c) for c in centroids.tolist()]
        power = 2 / (fuzziness - 1)
        rows.append([1 / sum((own / other) ** power for other in away) for own in away])
    return rows


def slow_step(points: Tensor, centroids: Tensor, fuzziness: float) -> list[list[float]]:
    """c_j = Σ_i u_ij^m x_i / Σ_i u_ij^m."""
    rows = slow_memberships(points, centroids, fuzziness)
    found = []
    for j in range(len(centroids)):
        weights = [row[j] ** fuzziness for row in rows]
        columns = points.T.tolist()
        found.append(
            [sum(w * x for w, x in zip(weights, c, strict=True)) / sum(weights) for c in columns]
        )
    return found


def run(points: Tensor, centroids: Tensor, **changes: object) -> FuzzyMeans:
    return fuzzy_means(points, centroids, **{"fuzziness": 2.0, "iterations": 1} | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("fuzziness", [1.1, 2.0, 3.5])
def test_memberships_are_those_of_the_formula(fuzziness: float) -> None:
    expected = torch.tensor(slow_memberships(POINTS, CENTROIDS, fuzziness), dtype=torch.float64)
    torch.testing.assert_close(memberships(POINTS, CENTROIDS, fuzziness), expected)


@pytest.mark.parametrize("fuzziness", [1.1, 2.0, 3.5])
@pytest.mark.parametrize("rows", [7, 16384])
def test_iterations_are_those_of_the_formula(
    fuzziness: float, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BLOCK", rows * 64)
    expected = torch.tensor(slow_step(POINTS, CENTROIDS, fuzziness), dtype=torch.float64)
    found = run(POINTS, CENTROIDS, fuzziness=fuzziness)
    torch.testing.assert_close(found.centroids, expected)
    u = torch.tensor(slow_memberships(POINTS, CENTROIDS, fuzziness), dtype=torch.float64)
    torch.testing.assert_close(found.memberships, u.sum(dim=0))
    torch.testing.assert_close(found.powers, (u**fuzziness).sum(dim=0))
    away = torch.cdist(POINTS, CENTROIDS).square()
    assert found.objective == pytest.approx(float((u**fuzziness * away).sum()) / len(POINTS))
    twice = torch.tensor(slow_step(POINTS, expected, fuzziness), dtype=torch.float64)
    again = run(POINTS, CENTROIDS, fuzziness=fuzziness, iterations=2)
    torch.testing.assert_close(again.centroids, twice)


def test_rows_sum_to_one_and_the_objective_falls() -> None:
    u = memberships(POINTS, CENTROIDS, 1.3)
    torch.testing.assert_close(u.sum(dim=1), torch.ones(len(POINTS), dtype=torch.float64))
    runs = [run(POINTS, CENTROIDS, fuzziness=1.3, iterations=n) for n in range(1, 9)]
    objectives = [found.objective for found in runs]
    assert objectives == sorted(objectives, reverse=True)
    assert objectives[-1] < objectives[0]


@pytest.mark.parametrize("fuzziness", [1.1, 2.0, 9.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_point_on_a_centroid_is_all_its_own(fuzziness: float, dtype: torch.dtype) -> None:
    points = POINTS.to(dtype)
    centroids = points[[5, 40]]
    u = memberships(points, centroids, fuzziness)
    assert bool(torch.isfinite(u).all())
    assert u[5, 0] == pytest.approx(1.0, abs=1e-3)
    assert u[40, 1] == pytest.approx(1.0, abs=1e-3)
    shared = memberships(points, points[[5, 5]], fuzziness)
    torch.testing.assert_close(shared, torch.full_like(shared, 0.5))
    assert bool(torch.isfinite(run(points, centroids, fuzziness=fuzziness).centroids).all())


def test_near_one_it_is_k_means() -> None:
    hard = memberships(POINTS, CENTROIDS, 1.00001).argmax(dim=1)
    assert hard.tolist() == torch.cdist(POINTS, CENTROIDS).argmin(dim=1).tolist()
    means = torch.stack([POINTS[hard == j].mean(dim=0) for j in range(len(CENTROIDS))])
    found = run(POINTS, CENTROIDS, fuzziness=1.00001).centroids
    torch.testing.assert_close(found, means, atol=1e-3, rtol=0)


def test_in_many_dimensions_centroids_of_fuzziness_two_are_nearly_one() -> None:
    """Why FFCM's experiments have 1.1."""
    spread = {
        m: float(run(POINTS, CENTROIDS, fuzziness=m, iterations=50).centroids.std(dim=0).max())
        for m in (1.1, 2.0)
    }
    assert spread[2.0] < 1e-3 < 0.1 < spread[1.1]


def test_a_centroid_that_no_point_belongs_to_stays() -> None:
    far = torch.cat([CENTROIDS, torch.full((1, POINTS.shape[1]), 1e6, dtype=torch.float64)])
    found = run(POINTS, far, fuzziness=1.01)
    torch.testing.assert_close(found.centroids[-1], far[-1])
    assert found.memberships[-1] == 0


def test_a_centroid_that_hardly_a_digit_of_any_point_belongs_to_stays_too() -> None:
    """Its weights are denormal: the sum of points by them has few digits, or none."""
    point = torch.tensor([[11.0, 10.0]], dtype=torch.float64)
    far = torch.tensor([[10.0, 10.0], [11.0 + 1200**0.5, 10.0]], dtype=torch.float64)
    found = run(point, far, fuzziness=1.01)
    assert 0 < found.powers[1] < torch.finfo(torch.float64).tiny
    assert torch.equal(found.centroids[1], far[1])


def test_permuting_centroids_permutes_what_is_found() -> None:
    order = [2, 0, 3, 1]
    one, other = run(POINTS, CENTROIDS, iterations=3), run(POINTS, CENTROIDS[order], iterations=3)
    torch.testing.assert_close(other.centroids, one.centroids[order])
    torch.testing.assert_close(other.memberships, one.memberships[order])


def test_what_is_not_finite_is_refused() -> None:
    with pytest.raises(DataError, match="centroids are not finite"):
        run(POINTS, CENTROIDS * math.nan)
    with pytest.raises(DataError, match="points are not finite"):
        run(POINTS * math.nan, CENTROIDS)
