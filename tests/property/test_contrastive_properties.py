"""Properties of the contrastive loss and the entropy over shapes, temperatures and seeds."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from coterie.losses.contrastive import cluster_contrastive_loss, contrastive_loss, nt_xent
from coterie.losses.entropy import cluster_entropy
from tests.builders.closed_forms import contrastive_gradients, entropy_gradient

sizes, widths, seeds = st.integers(2, 20), st.integers(1, 12), st.integers(0, 2**31)
temperatures = st.floats(0.05, 5.0)
quick = settings(max_examples=40)


def views(n: int, d: int, seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(2, n, d, dtype=dtype, generator=generator))


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-10, atol=1e-10)


@quick
@given(sizes, widths, seeds, temperatures, st.booleans())
def test_invariant_to_the_order_of_samples_and_to_their_length(
    n: int, d: int, seed: int, temperature: float, include_positive: bool
) -> None:
    u, v = views(n, d, seed)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    loss = contrastive_loss(u, v, temperature, include_positive)
    shuffled = contrastive_loss(3 * u[order], 0.2 * v[order], temperature, include_positive)
    assert close(loss, shuffled)


@quick
@given(sizes, sizes, seeds, temperatures, st.booleans())
def test_clusters_invariant_to_permuting_clusters_and_samples(
    n: int, clusters: int, seed: int, temperature: float, include_positive: bool
) -> None:
    c_a, c_b = (view.softmax(dim=1) for view in views(n, clusters, seed))
    generator = torch.Generator().manual_seed(seed)
    rows, columns = (torch.randperm(k, generator=generator) for k in (n, clusters))
    loss = cluster_contrastive_loss(c_a, c_b, temperature, include_positive)
    p_a, p_b = c_a[rows][:, columns], c_b[rows][:, columns]
    assert close(loss, cluster_contrastive_loss(p_a, p_b, temperature, include_positive))
    assert close(cluster_entropy(c_a), cluster_entropy(p_a))


@quick
@given(sizes, widths, seeds, temperatures)
def test_bounds_and_order(n: int, d: int, seed: int, temperature: float) -> None:
    u, v = views(n, d, seed)
    without = contrastive_loss(u, v, temperature).item()
    positive = contrastive_loss(u, v, temperature, include_positive=True).item()
    # Every similarity is in [-1, 1], and a sample's e^L with the positive is 1 + its e^L without.
    assert abs(without - math.log(2 * n - 2)) <= 2 / temperature + 1e-9
    assert positive >= max(0.0, without) - 1e-9
    assert close(nt_xent(u, v, temperature), nt_xent(v, u, temperature))


@quick
@given(st.integers(1, 20), st.integers(1, 12), seeds, st.floats(0.0, 1000.0))
def test_entropy_between_zero_and_log_of_clusters(
    n: int, clusters: int, seed: int, sharpness: float
) -> None:
    c = (sharpness * views(n, clusters, seed)[0]).softmax(dim=1)
    assert -1e-12 <= cluster_entropy(c).item() <= math.log(clusters) + 1e-12
    assert entropy_gradient(c).isfinite().all()


@quick
@given(sizes, st.integers(1, 12), seeds, st.booleans(), st.sampled_from([0.0, 1e-4, 1.0, 1e4]))
def test_finite_in_float32_at_a_low_temperature(
    n: int, d: int, seed: int, include_positive: bool, scale: float
) -> None:
    u, v = (scale * view for view in views(n, d, seed, torch.float32))
    v = torch.where(torch.arange(n)[:, None] % 2 == 0, u, v)
    u.requires_grad_()
    loss = contrastive_loss(u, v, 0.05, include_positive)
    (gradient,) = torch.autograd.grad(loss, u)
    exact = contrastive_loss(u.double(), v.double(), 0.05, include_positive)
    assert abs(loss.item() - exact.item()) < 1e-4
    assert gradient.isfinite().all()
    assert all(g.isfinite().all() for g in contrastive_gradients(u, v, 0.05, include_positive))
