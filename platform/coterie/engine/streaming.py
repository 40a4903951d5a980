"""Predicts a stream of samples with one model, batch by batch."""

from collections.abc import Iterable, Iterator
from typing import Literal

import torch

from coterie.contract.data import SampleBatch
from coterie.errors import ConfigError
from coterie.networks.clusterer import Clusterer, Prediction

Accelerator = Literal["auto", "cpu", "cuda"]
Predicted = tuple[SampleBatch, Prediction]
"""A batch and what the model says about it, on the CPU."""


class BatchPredictor:
    """A model on the device that this process has.

    Args:
        model: In eval mode.
        accelerator: `auto` takes a GPU if there is one.
        threads: CPU threads; another number, other bits.

    Raises:
        ConfigError: If a GPU is asked for and there is none.
    """

    def __init__(self, model: Clusterer, accelerator: Accelerator, threads: int) -> None:
        has_gpu = torch.cuda.is_available()
        if accelerator == "cuda" and not has_gpu:
            raise ConfigError(
                "accelerator=cuda: there is no CUDA device here; use accelerator=cpu."
            )
        torch.set_num_threads(threads)
        self._device = torch.device("cuda" if has_gpu and accelerator != "cpu" else "cpu")
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
