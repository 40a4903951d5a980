"""SCAN's own labels and their balanced cross-entropy, against loops; no label, no gradient."""

import math

import pytest
import torch
from torch import Tensor

from coterie.losses.self_labels import UNSURE, balanced_cross_entropy, self_labels


def draw(n: int = 7, k: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return 2 * torch.randn(n, k, dtype=torch.float64, generator=generator)


LABELS = torch.tensor([0, 2, 0, UNSURE, 0, 2, UNSURE])


def test_a_label_is_the_most_probable_cluster_above_the_threshold() -> None:
    logits = draw()
    probabilities = logits.exp() / logits.exp().sum(dim=1, keepdim=True)
    threshold = 0.8
    found = self_labels(logits, threshold)
    for row, label in zip(probabilities.tolist(), found.tolist(), strict=True):
        assert label == (row.index(max(row)) if max(row) > threshold else UNSURE)
    assert 0 < (found == UNSURE).sum() < len(found)
    assert (self_labels(logits, 0.0) != UNSURE).all()
    even = torch.zeros(1, 2)
    assert self_labels(even, 0.5).item() == UNSURE


def test_labels_of_narrow_logits_are_computed_in_float32() -> None:
    """In bfloat16 the probability, 0.9902, would be 0.9883."""
    logits = torch.tensor([[4.625, 0.0, -4.4]], dtype=torch.bfloat16)
    assert self_labels(logits, 0.99).item() == 0


def test_the_loss_is_the_mean_over_clusters_of_the_mean_over_samples() -> None:
    logits = draw()
    each = {0: [], 2: []}
    for row, label in zip(logits.tolist(), LABELS.tolist(), strict=True):
        if label != UNSURE:
            each[label].append(-math.log(math.exp(row[label]) / sum(map(math.exp, row))))
    expected = sum(sum(terms) / len(terms) for terms in each.values()) / len(each)
    assert balanced_cross_entropy(logits, LABELS).item() == pytest.approx(expected, rel=1e-12)


def test_samples_without_a_label_have_no_gradient() -> None:
    logits = draw().requires_grad_()
    balanced_cross_entropy(logits, LABELS).backward()
    assert ((logits.grad.abs().sum(dim=1) == 0) == (LABELS == UNSURE)).all()


def test_without_labels_the_loss_is_nought_and_nothing_is_trained() -> None:
    logits = draw().requires_grad_()
    loss = balanced_cross_entropy(logits, torch.full((7,), UNSURE))
    loss.backward()
    assert (loss.item(), logits.grad) == (0.0, None)


def test_the_gradient_is_that_of_the_value() -> None:
    logits = draw().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: balanced_cross_entropy(x, LABELS), logits)
