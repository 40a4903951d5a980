"""Sinkhorn's plan, clusters of equal size, and the server's centroids: identities and faults."""

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from coterie.clustering.sinkhorn import (
    balanced_assignment,
    global_centroids,
    local_centroids,
    sinkhorn,
)
from coterie.errors import DataError

EXACT = {"rtol": 0, "atol": 1e-12}


def unit(n: int, d: int = 5, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(n, d, generator=draw, dtype=torch.float64), dim=1)


def logits(n: int = 11, k: int = 3) -> Tensor:
    return unit(n) @ unit(k, seed=1).T


@pytest.mark.parametrize("iterations", [1, 2, 10])
def test_each_sample_has_a_mass_of_one_after_every_iteration(iterations: int) -> None:
    rows = sinkhorn(logits(), iterations=iterations).sum(dim=1)
    torch.testing.assert_close(rows, torch.ones_like(rows), **EXACT)


def test_clusters_have_equal_mass_once_it_converges() -> None:
    columns = sinkhorn(logits(), iterations=3000).sum(dim=0)
    torch.testing.assert_close(columns, torch.full_like(columns, 11 / 3), rtol=0, atol=1e-9)
    assert (sinkhorn(logits(), iterations=1).sum(dim=0) - 11 / 3).abs().max() > 0.05


def test_equal_logits_give_one_over_the_clusters() -> None:
    plan = sinkhorn(torch.full((7, 4), 0.3, dtype=torch.float64))
    torch.testing.assert_close(plan, torch.full_like(plan, 0.25), **EXACT)


def test_a_constant_added_to_a_sample_changes_nothing() -> None:
    shifts = torch.linspace(-3.0, 3.0, 11, dtype=torch.float64)[:, None]
    torch.testing.assert_close(sinkhorn(logits() + shifts), sinkhorn(logits()), rtol=0, atol=1e-10)


def test_parity_with_the_iteration_written_with_loops() -> None:
    given = logits()
    plan = torch.softmax(given / 0.04, dim=1)
    for _ in range(10):
        for k in range(3):
            plan[:, k] = plan[:, k] / sum(plan[i, k] for i in range(11))
        for i in range(11):
            plan[i] = plan[i] / sum(plan[i, k] for k in range(3))
    torch.testing.assert_close(sinkhorn(given), plan, rtol=1e-10, atol=1e-14)


def test_logits_far_beyond_the_range_of_exp_are_finite() -> None:
    plan = sinkhorn(torch.tensor([[1.0, -1.0], [0.9, -1.0], [-1.0, 1.0]]) * 100)
    assert torch.isfinite(plan).all()
    torch.testing.assert_close(plan.sum(dim=1), torch.ones(3))


def sizes_of(assignment: Tensor, clusters: int) -> list[int]:
    return assignment.bincount(minlength=clusters).tolist()


@pytest.mark.parametrize(("n", "k"), [(8, 8), (9, 8), (15, 8), (16, 8), (128, 8), (127, 16)])
def test_balanced_clusters_have_equal_size_but_for_one(n: int, k: int) -> None:
    plan = sinkhorn(unit(n) @ unit(k, seed=1).T, iterations=1)  # far from equal columns
    sizes = sizes_of(balanced_assignment(plan), k)
    assert sum(sizes) == n
    assert set(sizes) <= {n // k, -(-n // k)}


def test_the_balanced_assignment_holds_the_most_mass_that_such_clusters_can() -> None:
    plan = sinkhorn(logits(7, 3))
    best = max(
        sum(float(plan[i, c]) for i, c in enumerate(clusters))
        for clusters in itertools.product(range(3), repeat=7)
        if set(sizes_of(torch.tensor(clusters), 3)) <= {2, 3}
    )
    found = balanced_assignment(plan)
    assert float(plan[torch.arange(7), found].sum()) == pytest.approx(best, abs=1e-12)


def test_local_centroids_are_the_normalised_means_of_balanced_clusters() -> None:
    z = unit(45)
    centroids, assignment = local_centroids(z, 8, seed=3, balanced=True)
    assert sorted(sizes_of(assignment, 8)) == [5, 5, 5, 6, 6, 6, 6, 6]
    for cluster in range(8):
        expected = normalize(z[assignment == cluster].mean(dim=0), dim=0)
        torch.testing.assert_close(centroids[cluster], expected, **EXACT)


def test_argmax_clusters_differ_in_size() -> None:
    z = torch.cat([normalize(unit(40) * 0.1 + unit(1, seed=9), dim=1), unit(5, seed=2)])
    _, free = local_centroids(z, 8, seed=3, balanced=False)
    _, equal = local_centroids(z, 8, seed=3, balanced=True)
    assert max(sizes_of(free, 8)) - min(sizes_of(free, 8)) > 1
    assert max(sizes_of(equal, 8)) - min(sizes_of(equal, 8)) == 1


def test_local_clusters_are_a_function_of_the_seed() -> None:
    z = unit(30)
    first = local_centroids(z, 4, seed=1, balanced=True)[0]
    torch.rand(5)
    assert torch.equal(local_centroids(z, 4, seed=1, balanced=True)[0], first)
    assert not torch.equal(local_centroids(z, 4, seed=2, balanced=True)[0], first)


def test_a_cluster_whose_rows_cancel_still_has_a_unit_centroid_and_no_rows_own() -> None:
    z = torch.cat([unit(1), -unit(1)])
    for rows in (z, z.repeat(3, 1), z.float(), torch.zeros(4, 5)):
        centroids, assignment = local_centroids(rows, 1, seed=3, balanced=True)
        assert assignment.tolist() == [0] * len(rows)
        norms = centroids.double().norm(dim=1)
        torch.testing.assert_close(norms, torch.ones_like(norms), rtol=0, atol=1e-6)
        assert (centroids.double() @ z[0]).abs().item() < 0.99
        assert torch.equal(local_centroids(rows, 1, seed=3, balanced=True)[0], centroids)


def test_in_the_place_of_an_empty_cluster_comes_a_row() -> None:
    z = unit(2).repeat(3, 1)  # two places in four clusters
    centroids, assignment = local_centroids(z, 4, seed=5, balanced=False)
    empty = assignment.bincount(minlength=4) == 0
    assert empty.any()
    norms = centroids.norm(dim=1)
    torch.testing.assert_close(norms, torch.ones_like(norms), **EXACT)
    nearest = (centroids[empty][:, None] - z[None]).abs().amax(dim=2).amin(dim=1)
    assert nearest.max() < 1e-12


def test_separate_groups_are_found() -> None:
    groups = torch.eye(5, dtype=torch.float64).repeat_interleave(6, dim=0)
    z = normalize(groups + 0.05 * unit(30), dim=1)
    _, assignment = local_centroids(z, 5, seed=4, balanced=True)
    found = [set(part.tolist()) for part in assignment.reshape(5, 6)]
    assert all(len(group) == 1 for group in found)


def test_global_centroids_are_those_of_pytorchs_sgd() -> None:
    points, start = unit(12), unit(4, seed=1)
    centroids = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.SGD([centroids], lr=0.01, momentum=0.9)
    for _ in range(25):
        scores = points @ centroids.T
        target = sinkhorn(scores.detach())
        loss = torch.zeros((), dtype=torch.float64)
        for i in range(12):
            loss = loss - (target[i] * torch.log(torch.softmax(scores[i] / 0.1, dim=0))).sum() / 12
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            centroids.copy_(centroids / centroids.norm(dim=1, keepdim=True))
    found = global_centroids(points, start, steps=25)
    torch.testing.assert_close(found, centroids.detach(), rtol=0, atol=1e-12)
    assert (found - start).abs().max() > 0.01


def test_global_centroids_have_unit_length_even_when_they_outnumber_the_points() -> None:
    found = global_centroids(unit(3), unit(8, seed=1), steps=30)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(8, dtype=torch.float64), **EXACT)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: sinkhorn(torch.zeros(0, 3)), r"logits of shape \(0, 3\): give a matrix"),
        (lambda: sinkhorn(torch.full((2, 2), torch.nan)), "logits: a value is not finite; check"),
        (lambda: sinkhorn(torch.ones(2, 2), epsilon=0.0), "epsilon=0.0, iterations=10: give a"),
        (lambda: sinkhorn(torch.ones(2, 2), iterations=0), "iterations=0: give a positive ε and"),
        (
            lambda: local_centroids(unit(3), 4, seed=0, balanced=True),
            "4 clusters for 3 rows: give 1 to 3",
        ),
        (lambda: global_centroids(unit(3), unit(2, 4)), "of widths 5 and 4: give them the same"),
    ],
)
def test_what_does_not_fit_is_refused(call, sentence) -> None:
    with pytest.raises(DataError, match=sentence):
        call()
