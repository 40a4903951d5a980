"""Predicts and embeds: chunks of a data set, a client's samples, a stream of batches."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import torch
from torch import Tensor, nn

from coterie.contract.client import ClientData
from coterie.contract.clusterer import Clusterer, Prediction, parameter_dtype, to_unit
from coterie.contract.data import Indices, SampleBatch, Samples
from coterie.contract.method import Method
from coterie.contract.phase import ServerState
from coterie.contract.samples import StreamedSamples, read_ahead
from coterie.contract.seeds import derive_seed
from coterie.execution.device import Accelerator, check_device, device_of
from coterie.networks.views import seeded_view

_CHUNK_BATCHES = 4


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Samples to predict: these rows of "train" or "test", so many at a time.

    Attributes:
        split: "train" or "test".
        rows: Rows of it.
        batch_size: Samples at a time.
        client: Whose model; None is the server's.
        projected: Whether to go on to where the method compares samples, see `Clusterer.project`.
        view: A seed: predict one random view of each sample, by the run's augmentation.
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
    """Chunks of a few batches; they do not depend on the number of actors, so neither do bits."""
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


@dataclass(kw_only=True)
class Predictor:
    """Predicts chunks in one process, keeping the last model.

    Attributes:
        method: Makes the model of a server state.
        samples: "train" and "test" samples, where they are at hand.
        device: Where to predict.
        augmentation: Builds the run's random views.
        stop: Called before each batch; raises when the run is to stop.
    """

    method: Method
    samples: Mapping[str, Samples]
    device: torch.device
    augmentation: Callable[[], nn.Module]
    stop: Callable[[], None]
    _key: tuple[str, int | None] | None = None
    _model: Clusterer | None = field(default=None, repr=False)

    def predict(self, server: ServerState, key: str, chunk: Chunk) -> Prediction:
        """Embedding and probabilities of the chunk's samples, on the CPU, in their order."""
        model = self._load(server, key, chunk.client)
        given = self._viewed(chunk.view)
        predict = model.project if chunk.projected else model
        samples = self.samples[chunk.split]
        return self._run(lambda x: predict(given(x)), samples, chunk.rows, chunk.batch_size)

    def predict_samples(
        self, server: ServerState, key: str, samples: Samples, batch_size: int
    ) -> Prediction:
        """The same of samples (n, …) that are at hand."""
        rows = np.arange(len(samples), dtype=np.int64)
        return self._run(self._load(server, key, None), samples, rows, batch_size)

    def _viewed(self, seed: int | None) -> Callable[[Tensor], Tensor]:
        """What a batch is turned into: itself, or random views of a seed, batch after batch."""
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
        return join(Prediction(p.embedding.cpu(), _cpu(p.probabilities)) for p in parts)


def join(parts: Iterable[Prediction]) -> Prediction:
    """Predictions of consecutive samples as one."""
    every = list(parts)
    probabilities = [p.probabilities for p in every if p.probabilities is not None]
    embedding = torch.cat([p.embedding for p in every])
    return Prediction(embedding, torch.cat(probabilities) if probabilities else None)


def _cpu(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.cpu()


_ROWS = 256
"""Samples that are embedded at a time."""


def embed(network: nn.Module, data: ClientData | Tensor, device: torch.device) -> Tensor:
    """A network's outputs for a client's samples, in eval mode and without a graph.

    Args:
        network: Takes samples in [0, 1] in its own type; left on the CPU, its modes as they were.
        data: The client's data, or samples (size, …), one or more.
        device: Where to compute.

    Returns:
        Outputs (size, …), in the samples' order, on the CPU.
    """
    modes = {part: part.training for part in network.modules()}
    network.eval().to(device)
    dtype, size = parameter_dtype(network), len(data)
    with torch.no_grad():
        outputs = [
            network(to_unit(_rows(data, start, min(start + _ROWS, size)).to(device), dtype))
            for start in range(0, size, _ROWS)
        ]
    network.cpu()
    for part, training in modes.items():
        part.training = training
    return torch.cat(outputs)


def _rows(data: ClientData | Tensor, start: int, end: int) -> Tensor:
    return data[start:end] if isinstance(data, Tensor) else data.take(np.arange(start, end))


Predicted = tuple[SampleBatch, Prediction]
"""A batch and what the model says about it, on the CPU."""


class BatchPredictor:
    """A model on the device that this process may use.

    Args:
        model: In eval mode.
        accelerator: `auto` takes a GPU if there is one.
        threads: CPU threads; another number, other bits.
        gpus: What this actor has reserved; None in a process that is no actor.

    Raises:
        ConfigError: If a GPU is asked for and there is none.
    """

    def __init__(
        self, model: Clusterer, accelerator: Accelerator, threads: int, gpus: float | None = None
    ) -> None:
        self._device = device_of(accelerator, gpus)
        check_device(accelerator, self._device)
        torch.set_num_threads(threads)
        self._model = model.eval().to(self._device)

    def predict(self, batch: SampleBatch) -> Prediction:
        """Embedding and probabilities of a batch, on the CPU."""
        with torch.inference_mode():
            # A copy: the samples may lie in a file or in shared memory, which must not be written.
            given = self._model(torch.tensor(batch.samples).to(self._device))
        found = given.probabilities
        return Prediction(given.embedding.cpu(), None if found is None else found.cpu())

    def predict_all(self, batches: Iterable[SampleBatch]) -> Iterator[Predicted]:
        """Predict batches as they come, in order."""
        return ((batch, self.predict(batch)) for batch in batches)
