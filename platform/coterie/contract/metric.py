"""A user's own metric, computed from a run's final predictions."""

import re
from abc import ABC, abstractmethod

import numpy as np
from jaxtyping import Float, Int64
from torch import Tensor


class Metric(ABC):
    """One number about the final predictions, named by `evaluation.metrics`.

    It is stored and shown as `custom/<name>`, where the name is the class's in lower case with
    underscores, such as `largest_share` for `LargestShare`.
    """

    @property
    def name(self) -> str:
        """The metric's name in the group `custom`."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()

    @abstractmethod
    def __call__(
        self,
        embedding: Float[Tensor, "n d"],
        assignments: Int64[np.ndarray, "n"] | None,
        labels: Int64[np.ndarray, "n"],
    ) -> float:
        """Return the metric's value.

        Args:
            embedding: Representations of the training samples.
            assignments: Their clusters, −1 for outliers; None where the model has none.
            labels: Their classes, −1 where unknown.
        """
