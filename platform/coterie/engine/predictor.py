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
        return self._run(model, self.samples[chunk.split], chunk.rows, chunk.batch_size)

    def predict_samples(
        self, server: ServerState, key: str, samples: NDArray[np.generic], batch_size: int
    ) -> Prediction:
        """The same of samples (n, …) that are at hand."""
        rows = np.arange(len(samples), dtype=np.int64)
        return self._run(self._load(server, key, None), samples, rows, batch_size)

    def _run(
        self, model: Clusterer, samples: NDArray[np.generic], rows: Indices, batch_size: int
    ) -> Prediction:
        starts = range(0, len(rows), batch_size)
        with torch.inference_mode():
            parts = [
                model(torch.from_numpy(samples[rows[start : start + batch_size]]).to(self.device))
                for start in starts
            ]
        return join(Prediction(p.embedding.cpu(), _cpu(p.probabilities)) for p in parts)

    def _load(self, server: ServerState, key: str, client: int | None) -> Clusterer:
        if self._model is None or self._key != (key, client):
            model = self.method.model_for(server, client).eval().to(self.device)
            self._key, self._model = (key, client), model
        return self._model


def join(parts: Iterable[Prediction]) -> Prediction:
    """Predictions of consecutive samples as one."""
    every = list(parts)
    probabilities = [p.probabilities for p in every if p.probabilities is not None]
    embedding = torch.cat([p.embedding for p in every])
    return Prediction(embedding, torch.cat(probabilities) if probabilities else None)


def _cpu(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.cpu()
