"""k-nearest-neighbour classification in a frozen embedding."""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from coterie.config.schema import KnnWeighting
from coterie.evaluation.classification_metrics import check_features

BLOCK = 2**24
"""Similarities held at once: 64 MiB of float32."""
TEMPERATURE = 0.1
"""Temperature of the weights "exp"."""


def knn_accuracy(
    train_x: Tensor,
    train_y: Tensor,
    test_x: Tensor,
    test_y: Tensor,
    *,
    classes: int,
    k: int = 200,
    weighting: KnnWeighting = "exp",
) -> float:
    """Return the accuracy of a vote of the k nearest training features by cosine similarity.

    Features are L2-normalised. Each of the k nearest votes for its class with weight
    exp(cos/0.1) ("exp") or 1 ("uniform"); among equal votes the lowest class wins. It is
    computed on the device of `train_x` in blocks of test rows, so memory does not grow with the
    test set.

    Args:
        train_x: Features (n, d).
        train_y: Classes (n,), in 0..classes−1.
        test_x: Features (m, d).
        test_y: Classes (m,).
        classes: The number of classes.
        k: Number of neighbours; clipped to n.
        weighting: Weight of a vote.

    Returns:
        float: The share of test features whose true class wins, in 0..1.

    Raises:
        DataError: If shapes, labels or values do not fit.
    """
    check_features(train_x, train_y, classes, "train")
    check_features(test_x, test_y, classes, "test")
    bank = normalize(train_x.detach().float(), dim=1)
    bank_y = train_y.to(bank.device)
    temperature = TEMPERATURE if weighting == "exp" else None
    right = 0
    size = max(1, BLOCK // len(bank))
    for first in range(0, len(test_x), size):
        block = slice(first, first + size)
        queries = normalize(test_x[block].detach().to(bank.device, torch.float32), dim=1)
        cosine, nearest = (queries @ bank.T).topk(min(k, len(bank)), dim=1)
        predicted = votes(cosine, bank_y[nearest], classes, temperature).argmax(dim=1)
        right += int((predicted == test_y[block].to(bank.device)).sum())
    return right / len(test_x)


def votes(cosine: Tensor, neighbour_y: Tensor, classes: int, temperature: float | None) -> Tensor:
    """Return votes (m, classes) of neighbours (m, k), nearest first, or of equal weight."""
    if temperature is None:
        weights = torch.ones_like(cosine)
    else:
        # Relative to the nearest neighbour: the decision is the same, and exp cannot overflow.
        weights = ((cosine - cosine[:, :1]) / temperature).exp()
    # A masked sum per class: unlike scatter_add_, its order is fixed on a GPU too.
    return torch.stack([(weights * (neighbour_y == c)).sum(dim=1) for c in range(classes)], dim=1)
