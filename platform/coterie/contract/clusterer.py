"""A run's model: an encoder and, if the method clusters, a cluster head or centroids."""

from itertools import chain
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64, Shaped
from lightning import LightningModule
from torch import Tensor, nn
from torch.utils._pytree import _register_namedtuple

from coterie.clustering.contingency import OUTLIER
from coterie.precision import unit_rows


class Prediction(NamedTuple):
    """Output of a model for n samples.

    Attributes:
        embedding: Representations, d features each.
        probabilities: Soft assignments to k clusters, rows sum to 1; None without clusters.
    """

    embedding: Float[Tensor, "n d"]
    probabilities: Float[Tensor, "n k"] | None

    def cpu(self) -> "Prediction":
        """Return the same on the CPU."""
        probabilities = None if self.probabilities is None else self.probabilities.cpu()
        return Prediction(self.embedding.cpu(), probabilities)


_register_namedtuple(Prediction, serialized_type_name="coterie.contract.clusterer.Prediction")


def to_unit(
    samples: Shaped[Tensor, "n *shape"], dtype: torch.dtype = torch.float32
) -> Float[Tensor, "n *shape"]:
    """Scale uint8 samples to [0, 1]; convert floating ones (feature vectors) to `dtype`.

    The result's strides are those of its shape: convolutions choose their kernel, and so their
    bits, by the strides, also by that of a single channel, which depends on who made the array.
    """
    # A new tensor where the type differs.
    as_float = samples.to(dtype, memory_format=torch.contiguous_format)
    if samples.dtype != torch.uint8:
        return as_float
    # By a tensor: a GPU multiplies by the inverse of a number, which is one rounding off.
    return as_float.div_(torch.full((), 255.0, dtype=dtype, device=samples.device))


def parameter_dtype(module: nn.Module) -> torch.dtype:
    """Return the floating dtype of a module's parameters, else of its buffers, else float32."""
    numbers = chain(module.parameters(), module.buffers())
    return next((t.dtype for t in numbers if t.is_floating_point()), torch.float32)


def most_probable(
    probabilities: Float[Tensor, "n k"], outliers: bool
) -> tuple[Int64[Tensor, "n"], Float[Tensor, "n"]]:
    """Return each sample's most probable cluster, and its probability.

    Where the last column is that of outliers, their cluster is `OUTLIER`.
    """
    confidence, clusters = probabilities.max(dim=1)
    if outliers:
        clusters = clusters.masked_fill(clusters == probabilities.shape[1] - 1, OUTLIER)
    return clusters, confidence


class UnitProjection(nn.Module):
    """Unit-length outputs of a projector, for methods that compare samples by cosine similarity."""

    def __init__(self, projector: nn.Module) -> None:
        super().__init__()
        self.projector = projector

    def forward(self, representations: Float[Tensor, "n d"]) -> Prediction:
        """Project representations to unit length, in float32 or wider."""
        return Prediction(unit_rows(self.projector(representations)), None)


class Clusterer(LightningModule):
    """An encoder with an optional cluster head, for evaluation, prediction and export.

    Args:
        encoder: Maps samples in [0, 1] to representations.
        head: Maps representations to cluster probabilities; None while there are no clusters.
        classifies: Whether the head's outputs are the data's classes, learned from labels, so that
            scores need no matching.
        outliers: Whether the head's last output is that of outliers, which belong to no cluster.
        projection: Maps representations to the `Prediction` in which the method compares samples,
            for scores without labels; by default the representations themselves.
    """

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Module | None = None,
        *,
        classifies: bool = False,
        outliers: bool = False,
        projection: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.projection = projection
        self.classifies = classifies
        self.outliers = outliers

    def forward(self, samples: Shaped[Tensor, "n ..."]) -> Prediction:
        """Embed and assign samples, uint8 or float."""
        embedding = self.encoder(to_unit(samples, parameter_dtype(self)))
        return Prediction(embedding, None if self.head is None else self.head(embedding))

    def project(self, samples: Shaped[Tensor, "n ..."]) -> Prediction:
        """Map samples to the space in which the method compares them; by default as `forward`."""
        found: Prediction = self(samples)
        return found if self.projection is None else self.projection(found.embedding)

    def predict_step(self, batch: Shaped[Tensor, "n ..."], batch_idx: int = 0) -> Prediction:
        """Predict a batch of samples, for Lightning's Trainer."""
        prediction: Prediction = self(batch)
        return prediction
