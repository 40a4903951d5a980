"""The interface of a run's evaluators, and the result of a run's final evaluation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from coterie.config.schema import EvaluationConfig
from coterie.contract.phase import ServerState

UNSUPERVISED = "unsupervised"
"""The group of the metrics that need no labels."""
FOUND = "clusters"
"""The group of the number of clusters, where the method has found it itself."""
LOCAL = "local"
"""The group of the metrics on the clients' own test sets."""
OWN = "custom"
"""The group of the user's own metrics."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The final evaluation of a run.

    Attributes:
        metrics: Group to metrics: "clustering", "clustering_test", "kmeans_raw", "linear", "knn",
            "outliers"; for a classifier "train" and "test" instead of the first three.
        embedding: Representations of the training samples (n, features).
        assignments: Their clusters (n,), -1 for outliers; None if the model has none and k-means
            was not run.
        confidence: Probability of the assigned cluster (n,).
        clusters: The number of clusters that samples can belong to, or None if it is not known.
        head: What assigned the clusters, if the model has no head of its own.
        table: Contingency table (clusters, classes), or None without labels.
    """

    metrics: Mapping[str, Mapping[str, float]]
    embedding: Tensor
    assignments: NDArray[np.int64] | None
    confidence: NDArray[np.float32] | None
    table: NDArray[np.int64] | None
    clusters: int | None = None
    head: nn.Module | None = None


_SHOWN = 10
"""The most clusters whose sizes are told one by one."""


class Scorer(Protocol):
    """Interface of the evaluators, which score server states.

    Attributes:
        sent: Bytes sent for evaluation so far; the recorder adds them to the ledger.
        missed: Clients that could not be reached so far; the recorder lists them as failures.
    """

    config: EvaluationConfig
    sent: int
    missed: tuple[int, ...]

    @property
    def group(self) -> str:
        """The group of the metrics of `quick`: "clustering", "train", "test" or "local"."""

    def full_name(self, name: str) -> str:
        """Return the name of a metric of `quick` with its group: "acc" is "clustering/acc"."""
        return name if "/" in name else f"{self.group}/{name}"

    def due(self, round_: int, last: bool) -> bool:
        """Return whether to evaluate after this round; `final` follows the last one instead."""
        return not last and self.config.every > 0 and round_ % self.config.every == 0

    def quick(self, server: ServerState) -> dict[str, float]:
        """Return metrics between rounds."""

    def final(self, server: ServerState) -> Evaluation:
        """Return the final evaluation."""


def own_in_words(metrics: Mapping[str, Mapping[str, float]]) -> str:
    """Return the values of the user's own metrics in one line; "" if there are none."""
    return ", ".join(f"custom/{name}={value:.6g}" for name, value in metrics.get(OWN, {}).items())


def sizes_in_words(assignments: NDArray[np.int64] | None) -> str:
    """Return the sizes of clusters in a sentence, the largest first; "" without clusters."""
    if assignments is None or not len(assignments):
        return ""
    sizes = sorted(np.unique(assignments[assignments >= 0], return_counts=True)[1], reverse=True)
    if len(sizes) > _SHOWN:
        shown = f"of {sizes[-1]:,} to {sizes[0]:,}"
    else:
        shown = f"of {', '.join(f'{size:,}' for size in sizes)}"
    clusters = f"{len(sizes):,} cluster{'s' * (len(sizes) != 1)}"
    return f"{sum(sizes):,} samples are in {clusters}, {shown}."


def found_in_words(metrics: Mapping[str, Mapping[str, float]]) -> str:
    """Return a sentence on the number of clusters that a method has found itself, or ""."""
    number = metrics.get(FOUND, {}).get("number")
    if number is None:
        return ""
    share = metrics.get("outliers", {}).get("share", 0.0)
    away = f", and {share:.1%} of the samples belong to none" if share else ""
    return f"{int(number):,} clusters were found{away}."
