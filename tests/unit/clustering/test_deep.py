"""DCN: its running means, its steps against slow loops in float64, and the clusters it finds."""

import copy

import numpy as np
import torch
from torch import Tensor, nn

from coterie.clustering.deep import deep_clustering, running_means
from coterie.clustering.kmeans import kmeans, nearest_centroids

OPTIONS = {
    "clusters": 3,
    "pretrain_epochs": 2,
    "epochs": 2,
    "pull": 0.3,
    "learning_rate": 1e-2,
    "batch_size": 7,
    "restarts": 2,
}


def networks(width: int = 6) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(width, 5), nn.ReLU(), nn.Linear(5, 2)).double()
    return encoder, nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, width)).double()


def points(count: int = 22) -> Tensor:
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def slow_means(centroids: Tensor, counts: Tensor, rows: Tensor, nearest: Tensor) -> Tensor:
    """Sample after sample, with the rate 1 / (n_c + 1)."""
    means, numbers = centroids.clone(), counts.tolist()
    for row, at in zip(rows, nearest.tolist(), strict=True):
        numbers[at] += 1
        means[at] = means[at] + (row - means[at]) / numbers[at]
    return means


def test_centroids_move_as_sample_after_sample() -> None:
    rows, counts = points()[:, :2], torch.tensor([0.0, 4.0, 9.0], dtype=torch.float64)
    nearest = torch.arange(22) % 2
    start = points()[:3, 2:4]
    found, after = running_means(start, counts, rows, nearest)
    torch.testing.assert_close(found, slow_means(start, counts, rows, nearest))
    assert after.tolist() == [11.0, 15.0, 9.0]
    assert torch.equal(found[2], start[2])


def test_a_centroid_that_nothing_counts_for_stays() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    found, after = running_means(points()[:2], torch.zeros(2).double(), points()[:0], none)
    assert torch.equal(found, points()[:2])
    assert after.tolist() == [0.0, 0.0]


def half_squares(found: Tensor, wanted: Tensor) -> Tensor:
    terms = [0.5 * ((a - b) ** 2).sum() for a, b in zip(found, wanted, strict=True)]
    return torch.stack(terms).sum() / len(terms)


def test_training_is_algorithm_one_step_after_step() -> None:
    encoder, decoder = networks()
    f, g = copy.deepcopy(encoder), copy.deepcopy(decoder)
    x = points()
    found = deep_clustering(encoder, decoder, x, seed=3, **OPTIONS)  # type: ignore[arg-type]
    draw = torch.Generator().manual_seed(3)
    optimizer = torch.optim.Adam([*f.parameters(), *g.parameters()], lr=1e-2)

    def batches() -> list[Tensor]:
        parts = [p for _ in range(2) for p in torch.randperm(22, generator=draw).split(7)]
        return [part for part in parts if len(part) > 1]

    def step(loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    for places in batches():
        step(half_squares(g(f(x[places])), x[places]))
    start = kmeans(f(x).detach(), 3, seed=3, restarts=2)
    centroids, nearest = start.centroids.double(), start.assignments.clone()
    counts = torch.tensor([float((nearest == j).sum()) for j in range(3)], dtype=torch.float64)
    for places in batches():
        hidden = f(x[places])
        pull = half_squares(hidden, torch.stack([centroids[nearest[i]] for i in places]))
        step(half_squares(g(hidden), x[places]) + 0.3 * pull)
        nearest[places] = nearest_centroids(hidden.detach(), centroids)
        centroids = slow_means(centroids, counts, hidden.detach(), nearest[places])
        counts += torch.tensor([float((nearest[places] == j).sum()) for j in range(3)]).double()
    for ours, theirs in zip(encoder.parameters(), f.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found, kmeans(f(x).detach(), 3, seed=3, init=centroids).centroids)


def test_well_parted_groups_are_found_and_the_bits_are_the_seeds() -> None:
    generator = np.random.default_rng(0)
    groups = np.repeat(np.arange(3), 30)
    rows = 6 * np.eye(6)[groups] + 0.3 * generator.normal(size=(90, 6))
    x = torch.from_numpy(rows)
    options = {**OPTIONS, "pretrain_epochs": 20, "epochs": 5}
    found = []
    for _ in range(2):
        encoder, decoder = networks()
        found.append(deep_clustering(encoder, decoder, x, seed=0, **options))  # type: ignore[arg-type]
    assert torch.equal(*found)
    clusters = nearest_centroids(encoder(x), found[0]).numpy()
    assert len({*zip(clusters.tolist(), groups.tolist(), strict=True)}) == 3
