"""Under autocast the losses are those of float32: only the networks before them are rounded."""

import pytest
import torch
from torch.nn import functional

from coterie.losses.contrastive import cluster_contrastive_loss, contrastive_loss, nt_xent
from coterie.losses.cosine import cluster_contrast, negative_cosine
from coterie.losses.entropy import cluster_entropy
from coterie.losses.tiled import tiled_contrastive_loss
from coterie.losses.triplet import crossed_losses, received_loss, triplet_losses
from coterie.modules.orchestra_model import cluster_logits
from coterie.networks.heads import ClusterHead
from coterie.precision import cross_entropy, in_float32, unit_rows, widened

LABELS = torch.arange(64) % 4
LOSSES = {
    "contrastive": lambda u, v: contrastive_loss(u, v, 0.1),
    "contrastive, closed form": lambda u, v: tiled_contrastive_loss(u, v, 0.1),
    "nt_xent": lambda u, v: nt_xent(u, v, 0.1),
    "clusters": lambda u, v: cluster_contrastive_loss(u.exp(), v.exp(), 0.1),
    "entropy": lambda u, v: cluster_entropy(u.exp() + v.exp()),
    "negative cosine": negative_cosine,
    "cluster contrast": lambda u, v: cluster_contrast(u, v, LABELS, 4, "exclude_self"),
    "triplet": lambda u, v: triplet_losses(u, v, v.flip(0), 5.0),
    "crossed triplets": lambda u, v: crossed_losses(u, v, v.flip(0), 5.0),
    "received": lambda u, v: received_loss(u, v, v.flip(0), 5.0, "mean"),
    "cross-entropy": lambda u, v: cross_entropy(u, LABELS),
    "cross-entropy of soft labels": lambda u, v: cross_entropy(u, v.softmax(dim=1)),
    "Orchestra's logits": lambda u, v: cluster_logits(unit_rows(u), unit_rows(v), 0.1),
}


def rounded_pair():
    """Two views as a network under autocast gives them: near each other, in bfloat16."""
    drawn = torch.randn(2, 64, 16, generator=torch.Generator().manual_seed(0))
    u = drawn[0].bfloat16()
    return u, (drawn[0] + 0.1 * drawn[1]).bfloat16()


@pytest.mark.parametrize("name", LOSSES)
def test_value_and_gradient_are_those_of_float32(name):
    def value_and_gradient(*inputs, autocast=False):
        inputs = [x.detach().requires_grad_() for x in inputs]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            value = LOSSES[name](*inputs)
        return value, *torch.autograd.grad(value.sum(), inputs, allow_unused=True)

    u, v = rounded_pair()
    expected = value_and_gradient(u.float(), v.float())
    found = value_and_gradient(u.float(), v.float(), autocast=True)
    rounded = value_and_gradient(u, v, autocast=True)
    assert rounded[0].dtype == torch.float32
    # `exp` and `softmax` of this test itself are taken in bfloat16 where the inputs are.
    rough = name in {"clusters", "entropy", "cross-entropy of soft labels"}
    for exact, one, other in zip(expected, found, rounded, strict=True):
        assert (exact is None) == (one is None) == (other is None)
        if exact is not None:
            assert torch.equal(one, exact)
            tolerance = {"rtol": 2**-6, "atol": 1e-3} if rough else {"rtol": 2**-8, "atol": 1e-6}
            assert torch.allclose(other.float(), exact, **tolerance)


def test_double_precision_stays():
    u = torch.ones(2, 3, dtype=torch.float64)
    assert widened(u) is u
    assert in_float32(functional.l1_loss)(u, u.flip(0)).dtype == torch.float64


def test_named_tensors_are_widened_too_and_the_rest_is_left_alone():
    seen = {}

    @in_float32
    def look(x, *, scale, labels, kind):
        seen.update(scale=scale.dtype, labels=labels.dtype, kind=kind)
        return x

    half = torch.ones(2, dtype=torch.bfloat16)
    assert look(half, scale=half, labels=torch.arange(2), kind="sum").dtype == torch.float32
    assert seen == {"scale": torch.float32, "labels": torch.int64, "kind": "sum"}


def test_cluster_probabilities_sum_to_one_to_float32s_digits():
    head = ClusterHead(16, 16, 10)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rows = head(rounded_pair()[0].float()).sum(dim=1)
    assert torch.allclose(rows, torch.ones(64), rtol=1e-6)
