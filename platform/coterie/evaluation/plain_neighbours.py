"""Plain nearest neighbours with a number of them of one's own, as a metric of a run."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.contract.metric import Metric
from coterie.evaluation.neighbours import knn_accuracy

_EVERY = 5


class PlainNeighbours(Metric):
    """Accuracy of every fifth sample by the k nearest of the others, with equal votes.

    Args:
        k: The number of neighbours.
    """

    def __init__(self, k: int) -> None:
        self._k = k

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
        asked = np.zeros(len(known), dtype=bool)
        asked[::_EVERY] = True
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
