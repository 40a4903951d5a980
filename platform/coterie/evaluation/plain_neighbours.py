"""Plain nearest neighbours with a number of them of one's own, as a metric of a run."""

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

from coterie.contract.metric import Metric
from coterie.evaluation.neighbours import knn_accuracy

_EVERY = 5


class PlainNeighbours(Metric):
    """Accuracy of some samples by the k nearest of the others, with equal votes.

    Args:
        k: The number of neighbours.
        distance: By cosine similarity or Euclidean distance.
        last: Number of samples that are asked, the last ones: with `data.split=all` the test set.
            By default every fifth sample is.
    """

    def __init__(
        self,
        k: int,
        distance: Literal["cosine", "euclidean"] = "cosine",
        last: int | None = None,
    ) -> None:
        self._k, self._distance, self._last = k, distance, last

    @property
    def name(self) -> str:
        """Its name in the group `own`, such as `knn_5`."""
        return f"knn_{self._k}"

    def __call__(
        self,
        embedding: Tensor,
        assignments: NDArray[np.int64] | None,
        labels: NDArray[np.int64],
    ) -> float:
        """The accuracy in 0..1; see `Metric`. Samples without a class take no part."""
        known = np.flatnonzero(labels >= 0)
        if self._last is None:
            asked = np.arange(len(known)) % _EVERY == 0
        else:
            asked = known >= len(labels) - self._last
        if self._distance == "euclidean":
            features = embedding.numpy(force=True)[known]
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
