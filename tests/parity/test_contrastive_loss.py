"""The contrastive loss and the entropy against slow versions written from the formulas."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from coterie.errors import ConfigError, ContractError
from coterie.losses.contrastive import cluster_contrastive_loss, contrastive_loss, nt_xent
from coterie.losses.entropy import cluster_entropy

TEMPERATURES = [0.05, 0.5, 1.0]


def views(n: int, d: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(2, n, d, dtype=torch.float64, generator=generator))


def cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))


def slow_loss(u: Tensor, v: Tensor, temperature: float, include_positive: bool) -> float:
    total = 0.0
    for i in range(len(u)):
        positive = math.exp(cosine(u[i], v[i]) / temperature)
        xi = positive if include_positive else 0.0
        for j in range(len(u)):
            if j != i:
                xi += math.exp(cosine(u[i], u[j]) / temperature)
                xi += math.exp(cosine(u[i], v[j]) / temperature)
        total -= math.log(positive / xi)
    return total / len(u)


@pytest.mark.parametrize("include_positive", [False, True])
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize(("n", "d"), [(2, 3), (7, 5), (16, 2)])
def test_matches_the_formula(n: int, d: int, temperature: float, include_positive: bool) -> None:
    u, v = views(n, d)
    expected = slow_loss(u, v, temperature, include_positive)
    found = contrastive_loss(u, v, temperature, include_positive).item()
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_nt_xent_is_the_cross_entropy_over_all_views(temperature: float) -> None:
    u, v = views(9, 4)
    z = functional.normalize(torch.cat([u, v]), dim=1)
    logits = (z @ z.T / temperature).fill_diagonal_(-torch.inf)
    expected = functional.cross_entropy(logits, torch.arange(18).roll(9))
    assert nt_xent(u, v, temperature).item() == pytest.approx(expected.item(), rel=1e-12)
    asymmetric = contrastive_loss(u, v, temperature, include_positive=True)
    assert abs(asymmetric - expected) > 1e-3


@pytest.mark.parametrize("include_positive", [False, True])
def test_cluster_level_compares_columns(include_positive: bool) -> None:
    c_a, c_b = (view.softmax(dim=1) for view in views(20, 4))
    columns_a = torch.stack([c_a[:, i] for i in range(4)])
    columns_b = torch.stack([c_b[:, i] for i in range(4)])
    found = cluster_contrastive_loss(c_a, c_b, 1.0, include_positive).item()
    assert found == pytest.approx(slow_loss(columns_a, columns_b, 1.0, include_positive), rel=1e-12)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("n", [2, 5, 33])
def test_all_equal(n: int, temperature: float) -> None:
    u = torch.ones(n, 3, dtype=torch.float64)
    for include_positive, terms in ((False, 2 * n - 2), (True, 2 * n - 1)):
        found = contrastive_loss(u, u, temperature, include_positive).item()
        assert found == pytest.approx(math.log(terms), abs=1e-12)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("n", [2, 5, 33])
def test_orthonormal_and_equal_views(n: int, temperature: float) -> None:
    u = torch.eye(n, dtype=torch.float64)
    without = -1 / temperature + math.log(2 * (n - 1))
    positive = -1 / temperature + math.log(math.exp(1 / temperature) + 2 * (n - 1))
    assert contrastive_loss(u, u, temperature).item() == pytest.approx(without, abs=1e-12)
    found = contrastive_loss(u, u, temperature, include_positive=True).item()
    assert found == pytest.approx(positive, abs=1e-12)


def test_equal_networks_give_twice_the_loss_of_cc() -> None:
    # Target = online: L_MCC = ½[2 L(z) + 2 L(c)] − 2 [H + H] = 2 L_CC.
    z_a, z_b = views(12, 6)
    c_a, c_b = (view.softmax(dim=1) for view in views(12, 3, seed=1))
    cc = 0.5 * (contrastive_loss(z_a, z_b, 0.5) + cluster_contrastive_loss(c_a, c_b, 1.0))
    cc = cc - cluster_entropy(c_a) - cluster_entropy(c_b)
    pairs = ((z_a, z_b, contrastive_loss, 0.5), (c_a, c_b, cluster_contrastive_loss, 1.0))
    mcc = 0.5 * sum(f(a, b.clone(), t) + f(a.clone(), b, t) for a, b, f, t in pairs)
    mcc = mcc - sum(cluster_entropy(c) for c in (c_a, c_b, c_a.clone(), c_b.clone()))
    assert mcc.item() == pytest.approx(2 * cc.item(), rel=1e-12)


def test_entropy_matches_the_formula_and_its_extremes() -> None:
    c = views(10, 4)[0].softmax(dim=1)
    expected = 0.0
    for column in range(4):
        share = sum(float(c[row, column]) for row in range(10)) / 10
        expected -= share * math.log(share)
    assert cluster_entropy(c).item() == pytest.approx(expected, rel=1e-12)
    assert cluster_entropy(torch.eye(6).double()).item() == pytest.approx(math.log(6), rel=1e-12)
    assert cluster_entropy(torch.eye(6)[torch.zeros(9, dtype=torch.long)]).item() == 0.0


def test_entropy_of_an_empty_cluster_has_finite_gradients() -> None:
    logits = torch.tensor([[0.0, 0.5, -200.0], [1.0, 0.0, -200.0]], requires_grad=True)
    c = logits.softmax(dim=1)
    assert c[:, 2].max().item() == 0.0
    cluster_entropy(c).backward()
    assert logits.grad.isfinite().all()
    assert logits.grad[:, :2].abs().min() > 0


def test_refusals() -> None:
    one, two = torch.ones(1, 3), torch.ones(2, 3)
    with pytest.raises(ContractError, match="got 1 sample or cluster"):
        contrastive_loss(one, one, 0.5)
    with pytest.raises(ContractError, match="got 1 sample or cluster"):
        cluster_contrastive_loss(one.T, one.T, 0.5, include_positive=True)
    with pytest.raises(ContractError, match=r"\(2, 3\) and \(1, 3\)"):
        contrastive_loss(two, one, 0.5)
    for temperature in (0.0, -1.0, float("nan")):
        with pytest.raises(ConfigError, match="temperature="):
            contrastive_loss(two, two, temperature)
    with pytest.raises(ContractError, match=r"shape \(3,\)"):
        cluster_entropy(torch.ones(3))
