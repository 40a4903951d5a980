"""CF-CL's importance, losses and weight against the formulas in slow loops, in float64."""

import pytest
import torch
from torch import Tensor

from coterie.losses.triplet import (
    crossed_losses,
    received_loss,
    staleness_weight,
    triplet_losses,
)
from coterie.peers.clusters import mean_squared_radius
from coterie.peers.embeddings_importance import (
    cluster_overlaps,
    embedding_importance,
    embedding_scores,
)
from coterie.peers.samples_importance import sample_importance
from tests.builders import slow_importance as slow


def rows(n: int, seed: int, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(n, 4, dtype=torch.float64, generator=generator)


def labels(n: int, k: int, seed: int) -> Tensor:
    """All of k clusters occur."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(k, (n,), generator=generator).scatter(0, torch.arange(k), torch.arange(k))


def close(found: Tensor, wanted: list[float]) -> None:
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("temperature", [0.0, 0.7, 3.0])
def test_explicit_importance(seed: int, temperature: float) -> None:
    z, anchors, positives = rows(17, seed), rows(6, seed + 10), rows(6, seed + 20)
    own, foreign = labels(17, 5, seed), labels(6, 4, seed + 1) + 2  # cluster 5 is the reserve's own
    losses, wanted = slow.explicit(
        z, own.tolist(), anchors, positives, foreign.tolist(), 0.8, temperature
    )
    found = crossed_losses(anchors, positives, z, 0.8).mean(dim=0)
    close(found, losses)
    assert min(losses) >= 0
    assert max(losses) > min(losses)
    close(sample_importance(found, own, foreign, temperature), wanted)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("form", ["intent", "literal"])
@pytest.mark.parametrize(("mean", "deviation"), [(0.0, None), (0.4, 2.0), (-1.0, None)])
def test_implicit_importance(seed: int, form: str, mean: float, deviation: float | None) -> None:
    z, reserve = rows(19, seed), rows(8, seed + 10) + 0.3
    own, foreign = labels(19, 5, seed), labels(8, 3, seed + 1)
    scores, overlap, wanted = slow.implicit(
        z, own.tolist(), reserve, foreign.tolist(), form, mean, deviation
    )
    close(embedding_scores(z, own, reserve, form), scores)
    close(cluster_overlaps(z, own, reserve, foreign), list(overlap.values()))
    found = embedding_importance(
        z, own, reserve, foreign, form=form, mean=mean, deviation=deviation
    )
    close(found, wanted)
    assert max(wanted) > 2 * min(wanted)


def test_one_local_cluster_has_no_second_term() -> None:
    z, reserve = rows(7, 0), rows(4, 1)
    one, foreign = torch.zeros(7, dtype=torch.int64), labels(4, 2, 3)
    _, overlap, wanted = slow.implicit(
        z, one.tolist(), reserve, foreign.tolist(), "intent", 0, None
    )
    close(cluster_overlaps(z, one, reserve, foreign), list(overlap.values()))
    close(embedding_importance(z, one, reserve, foreign, form="intent"), wanted)


@pytest.mark.parametrize("seed", range(3))
def test_triplets_and_regulariser(seed: int) -> None:
    a, p, n, z = rows(9, seed), rows(9, seed + 1), rows(9, seed + 2), rows(5, seed + 3)
    wanted = [slow.triplet(*row, 0.5) for row in zip(a, p, n, strict=True)]
    assert 0.0 in wanted
    close(triplet_losses(a, p, n, 0.5), wanted)
    for reduction in ("mean", "sum"):
        value = slow.regulariser(a, p, z, 1.3, reduction)
        close(received_loss(a, p, z, 1.3, reduction), value)
        assert received_loss(a, p, z[:0], 1.3, reduction) == 0


def test_radius() -> None:
    z, own = rows(23, 1), labels(23, 6, 2)
    assert mean_squared_radius(z, own) == pytest.approx(slow.radius(z, own.tolist()), abs=1e-12)
    gap = torch.where(own == 3, 9, own)  # empty clusters have no radius
    same = slow.radius(z, gap.tolist())
    assert mean_squared_radius(z, gap) == pytest.approx(same, abs=1e-12)


@pytest.mark.parametrize("interval", [1, 2, 10, 25])
def test_weight_of_received_embeddings(interval: int) -> None:
    for t in range(1, 61):
        found = staleness_weight(t, total=60, interval=interval, scale=0.3, rho_zeta=0.7)
        assert found == pytest.approx(slow.weight(t, 60, interval, 0.3, 0.7), abs=1e-15)
