"""Predicts chunks of a run's data set in one process."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import torch
from torch import Tensor, nn

from coterie.contract.clusterer import Clusterer, Prediction, to_unit
from coterie.contract.data import Indices, Samples
from coterie.contract.method import Method
from coterie.contract.phase import ServerState
from coterie.contract.samples import StreamedSamples, read_ahead
from coterie.contract.seeds import derive_seed
from coterie.execution.settings import settings_kept
from coterie.networks.views import seeded_view

_CHUNK_BATCHES = 4


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Samples to predict in one call.

    Attributes:
        split: "train" or "test".
        rows: Rows of the split.
        batch_size: Samples in a forward pass.
        client: The client whose model predicts; None for the server's.
        projected: Whether to return the space in which the method compares samples, see
            `Clusterer.project`.
        view: Seed of a random view of each sample, by the run's augmentation; None for the
            samples as they are.
    """

    split: str
    rows: Indices
    batch_size: int
    client: int | None = None
    projected: bool = False
    view: int | None = None


def split_rows(
    split: str, rows: Indices, batch_size: int, *, projected: bool = False, view: int | None = None
) -> list[Chunk]:
    """Split rows into chunks of a few batches, whatever the number of actors."""
    step = batch_size * _CHUNK_BATCHES
    return [
        Chunk(
            split=split,
            rows=rows[start : start + step],
            batch_size=batch_size,
            projected=projected,
            view=None if view is None else derive_seed(view, start),
        )
        for start in range(0, len(rows), step)
    ]


def join(parts: Iterable[Prediction]) -> Prediction:
    """Concatenate predictions of consecutive samples."""
    every = list(parts)
    probabilities = [p.probabilities for p in every if p.probabilities is not None]
    embedding = torch.cat([p.embedding for p in every])
    return Prediction(embedding, torch.cat(probabilities) if probabilities else None)


@dataclass(kw_only=True)
class ChunkPredictor:
    """Predictor of chunks in one process, which keeps the last model that it built.

    Attributes:
        method: Builds the model from a server state.
        samples: "train" and "test" samples; empty where data is node-local.
        augmentation: Builds the run's augmentation.
        stop: Called before each batch; raises when the run is to stop.
    """

    method: Method
    samples: Mapping[str, Samples]
    device: torch.device
    augmentation: Callable[[], nn.Module]
    stop: Callable[[], None]
    _key: tuple[str, int | None] | None = None
    _model: Clusterer | None = field(default=None, repr=False)

    @settings_kept()
    def predict(self, server: ServerState, key: str, chunk: Chunk) -> Prediction:
        """Predict a chunk.

        Args:
            server: The state to build the model from.
            key: Identifies the server state; an equal key reuses the model.
            chunk: What to predict.

        Returns:
            Embedding and probabilities, on the CPU, in the order of the chunk's rows.
        """
        model = self._load(server, key, chunk.client)
        view = self._view(chunk.view)
        predict = model.project if chunk.projected else model
        samples = self.samples[chunk.split]
        return self._run(lambda x: predict(view(x)), samples, chunk.rows, chunk.batch_size)

    @settings_kept()
    def predict_samples(
        self, server: ServerState, key: str, samples: Samples, batch_size: int
    ) -> Prediction:
        """Predict samples (n, …) that are not part of `self.samples`; see `predict`."""
        rows = np.arange(len(samples), dtype=np.int64)
        return self._run(self._load(server, key, None), samples, rows, batch_size)

    def _view(self, seed: int | None) -> Callable[[Tensor], Tensor]:
        """Return a function of each batch: the identity, or a new random view."""
        if seed is None:
            return lambda batch: batch
        augment, seeds = self.augmentation().to(self.device), count()
        return lambda batch: seeded_view(augment, to_unit(batch), derive_seed(seed, next(seeds)))

    def _load(self, server: ServerState, key: str, client: int | None) -> Clusterer:
        if self._model is None or self._key != (key, client):
            model = self.method.model_for(server, client).eval().to(self.device)
            self._key, self._model = (key, client), model
        return self._model

    def _run(
        self,
        predict: Callable[[Tensor], Prediction],
        samples: Samples,
        rows: Indices,
        batch_size: int,
    ) -> Prediction:
        parts = []
        batches = (rows[start : start + batch_size] for start in range(0, len(rows), batch_size))
        streamed = isinstance(samples, StreamedSamples)
        with torch.inference_mode():
            for _, batch in read_ahead(samples.__getitem__, batches, threaded=streamed):
                self.stop()
                parts.append(predict(torch.from_numpy(batch).to(self.device)))
        return join(part.cpu() for part in parts)
