"""Embeds and assigns samples with the model of a server state."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.contract.data import Indices
from coterie.contract.method import Method
from coterie.contract.phase import ServerState
from coterie.networks.clusterer import Clusterer, Prediction


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Samples to predict: these rows of "train" or "test", so many at a time."""

    split: str
    rows: Indices
    batch_size: int
    client: int | None = None


@dataclass(kw_only=True)
class Predictor:
    """Predicts chunks in one process, keeping the last model."""

    method: Method
    samples: Mapping[str, NDArray[np.generic]]
    device: torch.device
    _key: tuple[str, int | None] | None = None
    _model: Clusterer | None = field(default=None, repr=False)

    def predict(self, server: ServerState, key: str, chunk: Chunk) -> Prediction:
        """Embedding and probabilities of the chunk's samples, on the CPU, in their order."""
        model = self._load(server, key, chunk.client)
        starts = range(0, len(chunk.rows), chunk.batch_size)
        with torch.inference_mode():
            parts = [model(self._batch(chunk, start)) for start in starts]
        return join(Prediction(p.embedding.cpu(), _cpu(p.probabilities)) for p in parts)

    def _load(self, server: ServerState, key: str, client: int | None) -> Clusterer:
        if self._model is None or self._key != (key, client):
            model = self.method.model_for(server, client).eval().to(self.device)
            self._key, self._model = (key, client), model
        return self._model

    def _batch(self, chunk: Chunk, start: int) -> Tensor:
        rows = chunk.rows[start : start + chunk.batch_size]
        return torch.from_numpy(self.samples[chunk.split][rows]).to(self.device)


def join(parts: Iterable[Prediction]) -> Prediction:
    """Predictions of consecutive samples as one."""
    every = list(parts)
    probabilities = [p.probabilities for p in every if p.probabilities is not None]
    embedding = torch.cat([p.embedding for p in every])
    return Prediction(embedding, torch.cat(probabilities) if probabilities else None)


def _cpu(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.cpu()
