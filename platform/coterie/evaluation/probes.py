"""The probes that the config asks for, on a frozen representation."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.config.schema import EvaluationConfig, ProbeOptimizer
from coterie.evaluation.linear_probe import linear_probe, standardised
from coterie.evaluation.neighbours import knn_accuracy

_FEW = 1024
"""Samples below which SGD trains the linear probe: Adam's steps are as large for features that vary
little, and on few samples these are noise."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Probes:
    """Linear probe and k nearest neighbours on frozen features."""

    config: EvaluationConfig
    classes: int
    seed: int

    def scores(
        self, features: tuple[Tensor, Tensor], targets: tuple[NDArray[np.int64], NDArray[np.int64]]
    ) -> dict[str, Mapping[str, float]]:
        """Return scores of the probes that the config asks for: "linear" and "knn".

        Args:
            features: Features to fit on (n, d) and to score on (m, d).
            targets: Their classes (n,) and (m,).
        """
        metrics: dict[str, Mapping[str, float]] = {}
        if self.config.linear_probe:
            metrics["linear"] = self.linear(features, targets)
        if self.config.knn:
            metrics["knn"] = {"acc": self.knn(features, targets)}
        return metrics

    def linear(
        self, features: tuple[Tensor, Tensor], targets: tuple[NDArray[np.int64], NDArray[np.int64]]
    ) -> dict[str, float]:
        """Return scores of the linear probe; arguments as in `scores`."""
        train_y, test_y = (torch.from_numpy(y) for y in targets)
        standardise = self.config.linear_probe_standardise
        train_x, test_x = standardised(*features) if standardise else features
        usual: ProbeOptimizer = "sgd" if len(train_y) < _FEW else "adam"
        return linear_probe(
            train_x,
            train_y,
            test_x,
            test_y,
            classes=self.classes,
            seed=self.seed,
            optimizer=self.config.linear_probe_optimizer or usual,
            steps=self.config.linear_probe_steps,
        )

    def knn(
        self, features: tuple[Tensor, Tensor], targets: tuple[NDArray[np.int64], NDArray[np.int64]]
    ) -> float:
        """Return the accuracy of the nearest neighbours; arguments as in `scores`."""
        train_y, test_y = (torch.from_numpy(y) for y in targets)
        k, count = self.config.knn_k, len(train_y)
        if 2 * k > count and k == EvaluationConfig.model_fields["knn_k"].default:
            k = max(1, count // 5)
        if 2 * k > count:
            _log.warning(
                "evaluation.knn_k=%d: that is most of the %d samples, so the most frequent "
                "classes win; lower it.",
                k,
                count,
            )
        return knn_accuracy(
            features[0],
            train_y,
            features[1],
            test_y,
            classes=self.classes,
            k=k,
            weighting=self.config.knn_weighting,
        )
