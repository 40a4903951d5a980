"""Membership inference: how well a score separates training samples from others.

A score is higher for samples that an attacker takes for members. Nothing is tuned on them: the area
under the ROC curve takes every threshold. For single samples the true-positive rate at a
false-positive rate of 1 % counts (Carlini et al., "Membership Inference Attacks From First
Principles", 2022).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from sklearn.metrics import roc_auc_score, roc_curve
from torch import Tensor, nn

from coterie.clustering.lattice import off_lattice
from coterie.contract.clusterer import parameter_dtype
from coterie.contract.seeds import derive_seed
from coterie.networks.heads import Centroids, FuzzyCentroids
from coterie.networks.prototypes import Prototypes, UnitPrototypes
from coterie.networks.views import BLOCK, LazyViews
from coterie.precision import unit_rows

FALSE_POSITIVES = 0.01
"""The false-positive rate at which true positives are counted."""
_RESAMPLES = 1000
_BLOCK = 100
"""Resamples that are ranked at a time."""
VIEWS = 10
"""Random views of a sample, as in EncoderMI."""


@dataclass(frozen=True, kw_only=True)
class Membership:
    """The result of an attack.

    Attributes:
        members: Number of members attacked.
        others: Number of samples that were not trained on.
        auc: Area under the ROC curve: the probability that a member has a higher score than another
            sample; 0.5 by chance.
        auc_interval: Its 95 % interval.
        tpr: True-positive rate at a false-positive rate of 1 %; 0.01 by chance.
        tpr_interval: Its 95 % interval.
    """

    members: int
    others: int
    auc: float
    auc_interval: tuple[float, float]
    tpr: float
    tpr_interval: tuple[float, float]

    @property
    def finding(self) -> str:
        """What the numbers mean, as one sentence."""
        low, high = self.auc_interval
        if low > 0.5:
            return (
                "It tells training samples from others: of one random sample of each kind, it "
                f"picks the member in {100 * self.auc:.0f} % of the cases."
            )
        if high < 0.5:
            return (
                "Training samples have lower scores than others, so the two differ in more than "
                "membership."
            )
        return "It does not tell training samples from others: the interval holds 0.5, chance."

    def row(self) -> dict[str, Any]:
        """Return the values for `audit.json`."""
        return {**vars(self), "finding": self.finding}


def membership(members: NDArray[np.float64], others: NDArray[np.float64], seed: int) -> Membership:
    """Compare scores of members with those of other samples.

    The intervals are percentiles of a bootstrap of 1000 resamples, of members and of others.

    Args:
        members: Finite scores (m,).
        others: Finite scores (n,).
        seed: Seed of the resamples.
    """
    truth = np.repeat([1, 0], [len(members), len(others)])
    scores = np.concatenate([members, others])
    false, true, _ = roc_curve(truth, scores, drop_intermediate=False)
    areas, rates = _resampled(members, others, np.random.default_rng(seed))
    return Membership(
        members=len(members),
        others=len(others),
        auc=float(roc_auc_score(truth, scores)),
        auc_interval=_interval(areas),
        tpr=float(true[false <= FALSE_POSITIVES].max()),
        tpr_interval=_interval(rates),
    )


def _resampled(
    members: NDArray[np.float64], others: NDArray[np.float64], rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return AUC and true-positive rate of each bootstrap resample."""
    areas, rates = [], []
    m, n = len(members), len(others)
    allowed = int(FALSE_POSITIVES * n)
    for _ in range(_RESAMPLES // _BLOCK):
        drawn = rng.choice(members, (_BLOCK, m)), rng.choice(others, (_BLOCK, n))
        ranks = rankdata(np.concatenate(drawn, axis=1), axis=1)[:, :m].sum(axis=1)
        areas.append((ranks - m * (m + 1) / 2) / (m * n))
        # At most this many of the others' scores are above this one.
        limit = np.sort(drawn[1], axis=1)[:, n - 1 - allowed]
        rates.append((drawn[0] > limit[:, None]).mean(axis=1))
    return np.concatenate(areas), np.concatenate(rates)


def _interval(values: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def loss_scores(probabilities: Tensor, labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the negative cross-entropy (Yeom et al., "Privacy Risk in Machine Learning", 2018).

    Args:
        probabilities: Of the classes (n, k).
        labels: Classes (n,).
    """
    own = probabilities.double().gather(1, torch.from_numpy(labels)[:, None])[:, 0]
    return own.clamp_min(torch.finfo(torch.float64).tiny).log().numpy()


def centroid_scores(head: nn.Module | None, embedding: Tensor) -> NDArray[np.float64] | None:
    """Return the negative distance to the nearest centroid; None for a head without centroids.

    Args:
        head: Of a model, on the CPU.
        embedding: Representations (n, d), on the CPU.
    """
    if head is None:
        return None
    *first, last = [*head] if isinstance(head, nn.Sequential) else [head]
    if isinstance(last, Prototypes):
        points = off_lattice(last.points)
    elif isinstance(last, Centroids | FuzzyCentroids):
        points = last.centroids
    else:
        return None
    for layer in first:
        embedding = layer(embedding)
    if isinstance(last, UnitPrototypes):
        embedding = unit_rows(embedding.double())
    return -torch.cdist(embedding.double(), points.double()).amin(dim=1).numpy()


def view_scores(
    encoder: nn.Module, augment: nn.Module, samples: Tensor, seed: int
) -> NDArray[np.float64]:
    """Return the mean cosine between representations of random views of a sample.

    Liu et al., "EncoderMI: Membership Inference against Pre-trained Encoders in Contrastive
    Learning" (2021): a contrastive encoder maps views of a training sample nearer to each other.

    Args:
        encoder: In eval mode, takes samples in [0, 1].
        augment: Draws a random view of each sample.
        samples: uint8 or floating (n, …), on the encoder's device.
        seed: Seed of the views.
    """
    dtype = parameter_dtype(encoder)
    seeds = [derive_seed(seed, "view", number) for number in range(VIEWS)]
    views = [LazyViews(augment, samples, each, dtype) for each in seeds]
    blocks = [_agreement(encoder, views, start) for start in range(0, len(samples), BLOCK)]
    return torch.cat(blocks).cpu().numpy()


@torch.no_grad()
def _agreement(encoder: nn.Module, views: Sequence[LazyViews], start: int) -> Tensor:
    """Return the mean cosine over all pairs of views of a block of samples."""
    seen = torch.stack([unit_rows(encoder(view[start : start + BLOCK]).double()) for view in views])
    # Σ over i < j of z_i · z_j = (‖Σ z‖² − Σ ‖z‖²) / 2
    over_pairs = seen.sum(dim=0).square().sum(dim=1) - seen.square().sum(dim=(0, 2))
    return over_pairs / (len(seen) * (len(seen) - 1))
