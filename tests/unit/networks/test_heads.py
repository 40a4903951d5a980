"""Heads: parameter counts by hand, parity with the formula, softmax rows."""

import torch
from torch import Tensor, nn

from coterie.networks.heads import Centroids, ClusterHead, FuzzyCentroids, Projector


def linear(x: Tensor, layer: nn.Module) -> Tensor:
    return x @ layer.weight.T + (0 if layer.bias is None else layer.bias)


def test_two_layers() -> None:
    head, x = Projector(6, 10, 4), torch.randn(5, 6)
    expected = linear(linear(x, head.layers[0]).clamp_min(0), head.layers[-1])
    torch.testing.assert_close(head(x), expected)
    assert sum(p.numel() for p in head.parameters()) == 7 * 10 + 11 * 4


def test_batch_norm_comes_before_relu() -> None:
    head, x = Projector(6, 10, 4, "hidden"), torch.randn(8, 6)
    hidden = linear(x, head.layers[0])
    hidden = (hidden - hidden.mean(0)) / (hidden.var(0, unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(head(x), linear(hidden.clamp_min(0), head.layers[-1]))
    assert sum(p.numel() for p in head.parameters()) == 6 * 10 + 2 * 10 + 11 * 4


def test_batch_norm_may_follow_the_projectors_last_layer() -> None:
    head, x = Projector(6, 10, 4, "all"), torch.randn(8, 6)
    z = head.layers[:-1](x)
    z = (z - z.mean(0)) / (z.var(0, unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(head(x), z)
    assert sum(p.numel() for p in head.parameters()) == 6 * 10 + 2 * 10 + 11 * 4


def test_cluster_head_is_softmax_over_clusters() -> None:
    torch.manual_seed(0)
    head, x = ClusterHead(6, 10, 3), torch.randn(5, 6)
    logits = linear(linear(x, head.layers[0]).clamp_min(0), head.layers[-1])
    torch.testing.assert_close(head(x), logits.exp() / logits.exp().sum(1, keepdim=True))
    torch.testing.assert_close(head(100 * x).sum(1), torch.ones(5))


def test_centroids_give_the_nearest_and_the_softmax_of_its_squared_distance() -> None:
    torch.manual_seed(0)
    centroids, x = torch.randn(4, 6), torch.randn(50, 6)
    squared = ((x[:, None] - centroids[None]) ** 2).sum(-1)
    expected = (-squared).exp() / (-squared).exp().sum(1, keepdim=True)
    head = Centroids(centroids)
    torch.testing.assert_close(head(x), expected, check_dtype=False)
    assert torch.equal(head(x).argmax(1), squared.argmin(1))
    torch.testing.assert_close(head(1e3 * x).sum(1), torch.ones(50).double())
    one_by_one = torch.cat([head(row[None]) for row in x])
    assert torch.equal(head(x), one_by_one)
    for scale in (1e-4, 1e-7):  # where float32 probabilities would all be equal
        near = Centroids(scale * centroids)
        assert torch.equal(near(scale * x).argmax(1), squared.argmin(1))


def test_fuzzy_centroids_give_memberships_that_no_other_sample_changes() -> None:
    torch.manual_seed(0)
    centroids, x = torch.randn(4, 6), torch.randn(50, 6)
    away = (x[:, None] - centroids[None]).double().norm(dim=-1)
    ratios = (away[:, :, None] / away[:, None, :]) ** (2 / (1.5 - 1))
    head = FuzzyCentroids(centroids, 1.5)
    torch.testing.assert_close(head(x), (1 / ratios.sum(dim=2)).float())
    one_by_one = torch.cat([head(row[None]) for row in x])
    assert torch.equal(head(x), one_by_one)
    assert torch.equal(head(centroids), torch.eye(4))
