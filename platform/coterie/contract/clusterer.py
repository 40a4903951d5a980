"""What a run leaves behind: an encoder and, when the method clusters, a head or centroids."""

from itertools import chain
from typing import NamedTuple

import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.utils._pytree import _register_namedtuple

from coterie.precision import unit_rows


class Prediction(NamedTuple):
    """What the model says about samples.

    Attributes:
        embedding: (samples, features).
        probabilities: (samples, clusters) with rows that sum to 1, or None without clusters.
    """

    embedding: Tensor
    probabilities: Tensor | None


# Exported programs are saved with this name, so it stays when the module moves.
_register_namedtuple(Prediction, serialized_type_name="coterie.networks.clusterer.Prediction")


def to_unit(samples: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """uint8 samples in [0, 1]; floating ones (feature vectors) as they are, in `dtype`."""
    as_float = samples.to(dtype)  # a new tensor where the type differs
    return as_float.div_(255.0) if samples.dtype == torch.uint8 else as_float


def parameter_dtype(module: nn.Module) -> torch.dtype:
    """The floating type that a module computes in; float32 if it holds no numbers.

    That of its parameters or, where all are frozen into buffers, of these.
    """
    numbers = chain(module.parameters(), module.buffers())
    return next((t.dtype for t in numbers if t.is_floating_point()), torch.float32)


class UnitProjection(nn.Module):
    """Where a method without clusters compares samples by cosine: its projector's unit outputs."""

    def __init__(self, projector: nn.Module) -> None:
        super().__init__()
        self.projector = projector

    def forward(self, representations: Tensor) -> Prediction:
        """Map (n, features) to unit projections (n, projection) in float32 at least."""
        return Prediction(unit_rows(self.projector(representations)), None)


class Clusterer(LightningModule):
    """An encoder with an optional cluster head, for evaluation, prediction and export.

    Args:
        encoder: Samples in [0, 1] to representations (samples, features).
        head: Representations to cluster probabilities; None while there are no clusters.
        classifies: Whether the head's outputs are the data's classes, learned from labels, so that
            they need no matching to be scored.
        projection: Representations to a `Prediction` where the method compares samples, if that is
            not the representation itself: its scores without labels are taken there.
    """

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Module | None = None,
        *,
        classifies: bool = False,
        projection: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.projection = projection
        self.classifies = classifies

    def forward(self, samples: Tensor) -> Prediction:
        """Embed and assign samples (n, …), uint8 or float."""
        embedding = self.encoder(to_unit(samples, parameter_dtype(self)))
        return Prediction(embedding, None if self.head is None else self.head(embedding))

    def project(self, samples: Tensor) -> Prediction:
        """What the method compares of samples (n, …): by default the same as `forward`."""
        found: Prediction = self(samples)
        return found if self.projection is None else self.projection(found.embedding)

    def predict_step(self, batch: Tensor, batch_idx: int = 0) -> Prediction:
        """Lightning's prediction on a batch of samples."""
        prediction: Prediction = self(batch)
        return prediction
