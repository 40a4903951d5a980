"""How far representations of different classes are apart, for those of one class."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.contract.metric import Metric

_ROWS = 1024


class ClassSeparation(Metric):
    """Mean distance of pairs of two classes over that of pairs of one class: CF-CL, figure 4.

    The figure shows the mean Euclidean distance for each pair of classes; this is one number of it.
    It is above 1 if classes are apart, and the representation's scale does not matter. Samples of
    unknown class do not count; NaN if there are no two classes, or no class has two samples.
    """

    def __call__(
        self,
        embedding: Tensor,
        assignments: NDArray[np.int64] | None,
        labels: NDArray[np.int64],
    ) -> float:
        """See `Metric`."""
        known = torch.from_numpy(labels >= 0)
        points, classes = embedding[known].double(), torch.from_numpy(labels)[known]
        one = other = pairs_of_one = 0.0
        for start in range(0, len(points), _ROWS):
            rows = slice(start, start + _ROWS)
            distances = torch.cdist(points[rows], points)
            same = classes[rows, None] == classes
            one += distances[same].sum().item()
            other += distances[~same].sum().item()
            pairs_of_one += int(same.sum())
        n = len(points)
        within = one / (pairs_of_one - n) if pairs_of_one > n else 0.0
        between = other / (n * n - pairs_of_one) if n * n > pairs_of_one else float("nan")
        return between / within if within else float("nan")
