"""Metrics of predicted classes: accuracy, F1 and areas under ROC curves."""

from itertools import combinations
from typing import cast

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import f1_score, roc_auc_score
from torch import Tensor
from torchmetrics.functional.classification import multiclass_f1_score

from coterie.clustering.blocks import count_not_finite
from coterie.errors import DataError

Floats = NDArray[np.floating]


def classification_scores(predicted: Tensor, y: Tensor, classes: int) -> dict[str, float]:
    """Return metrics of predicted against true classes, both int64 (n,).

    "acc" is the accuracy and "f1_macro" the mean F1 score over the classes, both in 0..1; classes
    that are neither true nor predicted are left out of the mean.
    """
    f1 = multiclass_f1_score(predicted, y, num_classes=classes, average="macro")
    return {"acc": float((predicted == y).double().mean()), "f1_macro": float(f1)}


def check_features(x: Tensor, y: Tensor, classes: int, name: str) -> None:
    """Refuse features that are not finite (n, d) or labels other than integers in 0..classes−1.

    Raises:
        DataError: With the name, the offending value and what is expected.
    """
    if x.ndim != 2 or y.ndim != 1 or len(x) != len(y) or len(x) == 0:
        raise DataError(
            f"{name} features {tuple(x.shape)} and labels {tuple(y.shape)}: give (n, d) and (n,)."
        )
    if y.is_floating_point() or int(y.min()) < 0 or int(y.max()) >= classes:
        raise DataError(
            f"{name} labels in {y.min().item()}..{y.max().item()}: give integers in "
            f"0..{classes - 1}."
        )
    bad = count_not_finite(x)
    if bad:
        raise DataError(
            f"{bad} of {len(x)} {name} features are not finite: check the encoder that made them."
        )


def f1_and_auroc(probabilities: Floats, labels: NDArray[np.int64]) -> dict[str, float]:
    """Return F1 scores and areas under ROC curves of one pool of predictions.

    "f1_macro" and "f1_weighted" of the most probable classes; "auroc_ovr_macro",
    "auroc_ovr_weighted", "auroc_ovo_macro" and "auroc_ovo_weighted" (Hand and Till, 2001) of the
    probabilities. All follow scikit-learn, over the classes that occur: a class without a sample
    has no ROC curve.

    Args:
        probabilities: (n, classes), rows that sum to 1.
        labels: True classes (n,).

    Raises:
        DataError: If there is no sample, or the shapes differ.
    """
    if not len(labels) or probabilities.ndim != 2 or len(probabilities) != len(labels):
        raise DataError(
            f"probabilities {probabilities.shape} and labels {labels.shape}: give (n, classes) and "
            "(n,), n of 1 or more."
        )
    found = probabilities.argmax(axis=1)
    f1 = {
        f"f1_{average}": float(f1_score(labels, found, average=average, zero_division=0.0))
        for average in ("macro", "weighted")
    }
    return f1 | _areas(probabilities.astype(np.float64), labels)


def _areas(probabilities: Floats, labels: NDArray[np.int64]) -> dict[str, float]:
    present, counts = np.unique(labels, return_counts=True)
    if len(present) < 2:
        return {}
    rest = [_area(labels == c, probabilities[:, c]) for c in present]
    pairs = list(combinations(range(len(present)), 2))
    against = [_pair_area(probabilities, labels, present[i], present[j]) for i, j in pairs]
    pair_counts = [counts[i] + counts[j] for i, j in pairs]
    return {
        "auroc_ovr_macro": float(np.mean(rest)),
        "auroc_ovr_weighted": float(np.average(rest, weights=counts)),
        "auroc_ovo_macro": float(np.mean(against)),
        "auroc_ovo_weighted": float(np.average(against, weights=pair_counts)),
    }


def _pair_area(probabilities: Floats, labels: NDArray[np.int64], a: int, b: int) -> float:
    """Return the mean of two areas: a against b by a's probability, and b against a by b's."""
    rows = (labels == a) | (labels == b)
    chosen, own = probabilities[rows], labels[rows]
    return (_area(own == a, chosen[:, a]) + _area(own == b, chosen[:, b])) / 2


def _area(positive: NDArray[np.bool_], scores: Floats) -> float:
    return cast("float", roc_auc_score(positive, scores))
