"""Predicts a stream of samples with one model, batch by batch."""

from collections.abc import Iterable, Iterator

import torch

from coterie.contract.data import SampleBatch
from coterie.engine.device import Accelerator, check_device, device_of
from coterie.networks.clusterer import Clusterer, Prediction

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
