"""Predicts batches of new samples with a saved model, as the batches arrive."""

from collections.abc import Iterable, Iterator

import torch
from torch import nn

from coterie.contract.clusterer import Prediction
from coterie.contract.data import SampleBatch
from coterie.execution.device import Accelerator, check_device, device_of

Predicted = tuple[SampleBatch, Prediction]
"""A batch and its prediction, on the CPU."""


class BatchPredictor:
    """A model on the device that this process may use.

    Args:
        model: In eval mode.
        accelerator: `auto` takes a GPU if there is one.
        threads: CPU threads; another number gives other bits.
        gpus: GPUs that this actor has reserved; None in a process that is not an actor.

    Raises:
        ConfigError: If the config asks for a GPU and there is none.
    """

    def __init__(
        self, model: nn.Module, accelerator: Accelerator, threads: int, gpus: float | None = None
    ) -> None:
        self._device = device_of(accelerator, gpus)
        check_device(accelerator, self._device)
        torch.set_num_threads(threads)
        self._model = model.eval().to(self._device)

    def ready(self) -> None:
        """Return once an actor has made its predictor."""

    def predict(self, batch: SampleBatch) -> Prediction:
        """Return embedding and probabilities of a batch, on the CPU."""
        with torch.inference_mode():
            # A copy, because a file or shared memory behind the samples must not be written to.
            prediction: Prediction = self._model(torch.tensor(batch.samples).to(self._device))
        return prediction.cpu()

    def predict_all(self, batches: Iterable[SampleBatch]) -> Iterator[Predicted]:
        """Predict batches lazily, in order."""
        return ((batch, self.predict(batch)) for batch in batches)
