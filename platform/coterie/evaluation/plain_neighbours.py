"""Plain nearest neighbours with a chosen number of them, as a metric of a run."""

from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

from coterie.contract.metric import Metric
from coterie.errors import DataError
from coterie.evaluation.neighbours import knn_accuracy

_EVERY = 5
Distance = Literal["cosine", "euclidean"]


class PlainNeighbours(Metric):
    """Accuracy of some samples by their k nearest neighbours among the others, with equal votes.

    Args:
        last: Number of samples that are asked, the last ones: with `data.split=all` the test set.
            By default every fifth sample is.

    Raises:
        ValueError: If the distance is unknown, or a number is below 1.
    """

    def __init__(
        self,
        k: int,
        distance: Distance = "cosine",
        last: int | None = None,
    ) -> None:
        if distance not in get_args(Distance):
            raise ValueError(f"distance={distance}: choose {' or '.join(get_args(Distance))}")
        if k < 1 or (last is not None and last < 1):
            raise ValueError(f"k={k} with last={last}: both have to be 1 or more")
        self._k, self._distance, self._last = k, distance, last

    @property
    def name(self) -> str:
        """The metric's name in the group `own`, such as `knn_5`."""
        return f"knn_{self._k}"

    def __call__(
        self,
        embedding: Tensor,
        assignments: NDArray[np.int64] | None,
        labels: NDArray[np.int64],
    ) -> float:
        """Return the accuracy in 0..1; see `Metric`. Samples without a class take no part."""
        known = np.flatnonzero(labels >= 0)
        if self._last is None:
            asked = np.arange(len(known)) % _EVERY == 0
        else:
            asked = known >= len(labels) - self._last
        if not 0 < asked.sum() < len(known):
            raise DataError(
                f"{self.name}: {asked.sum()} of {len(known)} samples with a class are classified, "
                "which leaves none to classify or none to compare with; give another `last`, or "
                "more samples."
            )
        if self._distance == "euclidean":
            features = embedding.float().numpy(force=True)[known]
            model = KNeighborsClassifier(min(self._k, int((~asked).sum())), algorithm="brute")
            model.fit(features[~asked], labels[known][~asked])
            return float(model.score(features[asked], labels[known][asked]))
        x, y = embedding[torch.from_numpy(known)], torch.from_numpy(labels[known])
        return knn_accuracy(
            x[torch.from_numpy(~asked)],
            y[torch.from_numpy(~asked)],
            x[torch.from_numpy(asked)],
            y[torch.from_numpy(asked)],
            classes=int(y.max()) + 1,
            k=self._k,
            weighting="uniform",
        )
