"""The cosine losses against loops over pairs: values, identities, gradients, refusals."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from coterie.errors import ContractError
from coterie.losses.cosine import cluster_contrast, negative_cosine, normalised_error
from tests.builders.slow_losses import cosine


def draw(n: int, d: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    p, z = torch.randn(2, n, d, dtype=torch.float64, generator=generator)
    return p, z


def slow(p: Tensor, z: Tensor, labels: list[int], pairs: str) -> float:
    """Eq. (1) and (2) over all pairs, a cluster at a time."""
    means = []
    for c in set(labels):
        members = [i for i, label in enumerate(labels) if label == c]
        if len(members) < 2:
            continue
        losses = []
        for i in members:
            others = [j for j in members if j != i or pairs == "all"]
            losses.append(-sum(cosine(p[i], z[j]) for j in others) / len(others))
        means.append(sum(losses) / len(losses))
    return sum(means) / len(means) if means else 0.0


LABELS = [
    [0, 0, 1, 1, 1, 0, 3, 3],
    [0, 1, 2, 3, 3, 3, 3, 0],  # clusters 1 and 2 have one sample
    [2] * 8,
    [0, 0, 0, 0, 0, 0, 0, 3],
]


@pytest.mark.parametrize("pairs", ["exclude_self", "all"])
@pytest.mark.parametrize("labels", LABELS, ids=str)
def test_it_is_the_mean_over_pairs_then_samples_then_clusters(
    labels: list[int], pairs: str
) -> None:
    p, z = draw(8)
    found = cluster_contrast(p, z, torch.tensor(labels), 4, pairs).item()
    assert found == pytest.approx(slow(p, z, labels, pairs), rel=1e-12)


def test_clusters_weigh_the_same_whatever_their_size() -> None:
    near, far = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    p = torch.cat([near.repeat(6, 1), far, far])
    z = near.repeat(8, 1)
    labels = torch.tensor([0] * 6 + [1] * 2)
    assert cluster_contrast(p, z, labels, 2, "exclude_self").item() == pytest.approx(-0.5)


@pytest.mark.parametrize("pairs", ["exclude_self", "all"])
def test_no_cluster_with_two_samples_gives_zero_and_no_gradient(pairs: str) -> None:
    p, z = draw(4)
    p.requires_grad_(True)
    loss = cluster_contrast(p, z, torch.arange(4), 7, pairs)
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(p.grad, torch.zeros_like(p))


def test_two_views_a_cluster_are_simsiam() -> None:
    p, z = draw(12)
    labels = torch.arange(6).repeat(2)
    simsiam = 0.5 * (negative_cosine(p[:6], z[6:]) + negative_cosine(p[6:], z[:6]))
    found = cluster_contrast(p, z, labels, 6, "exclude_self").item()
    assert found == pytest.approx(simsiam.item(), rel=1e-14)


def test_equal_directions_give_minus_one_and_the_loss_is_bounded() -> None:
    p, z = draw(9)
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2])
    same = p[:1] * torch.arange(1.0, 10.0).double()[:, None]
    for pairs in ("exclude_self", "all"):
        assert cluster_contrast(same, same, labels, 3, pairs).item() == pytest.approx(-1.0)
        assert -1.0 <= cluster_contrast(p, z, labels, 3, pairs).item() <= 1.0


def test_permuting_clusters_and_samples_changes_nothing() -> None:
    p, z = draw(10)
    labels = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2, 3])
    before = cluster_contrast(p, z, labels, 4, "exclude_self").item()
    order = torch.randperm(10, generator=torch.Generator().manual_seed(2))
    renamed = torch.tensor([2, 3, 0, 1])[labels]
    for found in (
        cluster_contrast(p, z, renamed, 4, "exclude_self"),
        cluster_contrast(p[order], z[order], labels[order], 4, "exclude_self"),
    ):
        assert found.item() == pytest.approx(before, rel=1e-12)


def test_no_gradient_flows_into_representations() -> None:
    p, z = draw(6)
    p.requires_grad_(True)
    z.requires_grad_(True)
    labels = torch.tensor([0, 0, 1, 1, 1, 0])
    (cluster_contrast(p, z, labels, 2, "exclude_self") + negative_cosine(p, z)).backward()
    assert z.grad is None
    assert p.grad.abs().min() > 0


def test_the_gradient_is_that_of_the_difference_quotient() -> None:
    p, z = draw(7)
    p.requires_grad_(True)
    labels = torch.tensor([0, 0, 1, 1, 1, 0, 2])
    assert torch.autograd.gradcheck(
        lambda x: cluster_contrast(x, z, labels, 3, "exclude_self"), (p,)
    )


def test_negative_cosine_is_minus_the_mean_cosine() -> None:
    p, z = draw(5)
    slow_mean = -sum(cosine(p[i], z[i]) for i in range(5)) / 5
    assert negative_cosine(p, z).item() == pytest.approx(slow_mean, rel=1e-12)
    assert negative_cosine(p, 3 * p).item() == pytest.approx(-1.0, rel=1e-14)
    assert negative_cosine(p, -p).item() == pytest.approx(1.0, rel=1e-14)


def test_half_precision_is_computed_in_float32() -> None:
    p, z = (x.to(torch.bfloat16) for x in draw(600))
    labels = torch.arange(600) % 2
    found = cluster_contrast(p, z, labels, 2, "exclude_self")
    wide = cluster_contrast(p.double(), z.double(), labels, 2, "exclude_self")
    assert found.dtype == torch.float32
    assert math.isclose(found.item(), wide.item(), rel_tol=1e-3, abs_tol=1e-6)


def test_memory_grows_with_n_not_with_its_square() -> None:
    n = 60_000  # a matrix of pairs would have 29 GB
    p = functional.normalize(torch.randn(n, 2, generator=torch.Generator().manual_seed(0)))
    loss = cluster_contrast(p, p, torch.arange(n) % 10, 10, "exclude_self")
    assert -0.1 < loss.item() < 0.1


def test_shapes_that_do_not_fit_are_refused() -> None:
    p, z = draw(4)
    with pytest.raises(ContractError, match=r"shapes \(4, 5\) and \(3, 5\)"):
        negative_cosine(p, z[:3])
    with pytest.raises(ContractError, match=r"labels of shape \(3,\) for 4 samples"):
        cluster_contrast(p, z, torch.arange(3), 3, "all")


def random_pair(n: int = 5, d: int = 4) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return list(torch.randn(2, n, d, dtype=torch.float64, generator=generator))


def test_negative_cosine_is_that_of_a_loop() -> None:
    p, z = random_pair()
    expected = -sum(cosine(a, b) for a, b in zip(p, z, strict=True)) / 5
    assert negative_cosine(p, z).item() == pytest.approx(expected, rel=1e-13)


def test_the_normalised_error_is_the_squared_distance_of_unit_vectors() -> None:
    p, z = random_pair()
    gaps = functional.normalize(p, dim=1) - functional.normalize(z, dim=1)
    expected = gaps.square().sum(dim=1).mean().item()
    assert normalised_error(p, z).item() == pytest.approx(expected, rel=1e-13)


ANGLES = [("same", -1, 0), ("right", 0, 2), ("opposite", 1, 4)]


@pytest.mark.parametrize(("angle", "cosines", "errors"), ANGLES)
def test_known_angles_at_any_length(angle: str, cosines: float, errors: float) -> None:
    p = 3.0 * torch.eye(4, dtype=torch.float64)
    z = {"same": p / 7, "right": p.roll(1, dims=1), "opposite": -2 * p}[angle]
    assert negative_cosine(p, z).item() == pytest.approx(cosines, abs=1e-15)
    assert normalised_error(p, z).item() == pytest.approx(errors, abs=1e-15)


@pytest.mark.parametrize("loss", [negative_cosine, normalised_error])
def test_no_gradient_reaches_the_projections(loss) -> None:
    p, z = (view.requires_grad_() for view in random_pair())
    loss(p, z).backward()
    assert z.grad is None
    assert p.grad.abs().max() > 0
    assert (p.grad * p).sum(dim=1).abs().max() < 1e-15, "a length matters"


def test_shapes_that_differ_are_refused() -> None:
    p, z = random_pair()
    with pytest.raises(ContractError, match=r"got shapes \(5, 4\) and \(4, 4\); give it two"):
        negative_cosine(p, z[1:])
