"""Semi-supervised evaluation: fine-tunes the whole network with a share of the labels."""

import copy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coterie.contract.clusterer import parameter_dtype, to_unit
from coterie.contract.data import Samples
from coterie.contract.seeds import seeded
from coterie.evaluation.classification_metrics import check_features, classification_scores
from coterie.evaluation.linear_probe import step
from coterie.evaluation.sampling import labelled_rows

_Labelled = tuple[Samples, NDArray[np.int64]]
"""Samples (n, …) and their classes (n,)."""


def fine_tune(
    encoder: nn.Module,
    train: _Labelled,
    test: _Labelled,
    *,
    classes: int,
    share: float,
    seed: int,
    epochs: int = 100,
    batch_size: int = 128,
    learning_rate: float = 1e-3,
    device: torch.device | str = "cpu",
) -> dict[str, float]:
    """Fine-tune encoder and a linear head with a share of the labels; score on held-out samples.

    FedMCC (section IV-C, Table V), FedU and Orchestra (section 6.1) fine-tune the whole model with
    1 % or 10 % of the labels, of samples that were held out of the training, as a run's
    `labelled_pool` does; SimCLR draws them by class. The last epoch is scored, never the best. The
    papers do not give the rest; we use cross-entropy, Adam 1e-3, 100 epochs, batches of 128 (a
    batch of a single sample is skipped because of batch norm), no augmentation, and PyTorch's
    initial distribution for the head. Neither the encoder nor the global random state is changed.

    Args:
        encoder: Maps samples in [0, 1] to representations (n, features).
        train: Samples and classes to draw the share from.
        test: Held-out samples and classes.
        classes: The number of classes.
        share: The share of each class that is labelled, at least one sample.
        seed: Seed of the share, the head and the order of the batches.
        epochs: Passes over the labelled samples.
        batch_size: Samples per step.
        learning_rate: Learning rate of Adam.
        device: The device to train on.

    Returns:
        See `classification_scores`.

    Raises:
        DataError: If labels do not fit, or the share is out of range.
    """
    rows = labelled_rows(train[1], share, seed)
    x, y = torch.tensor(train[0][rows]), torch.from_numpy(train[1][rows])
    with seeded(seed):
        network = copy.deepcopy(encoder).to(device).requires_grad_(True)
        dtype = parameter_dtype(network)
        features = _features(network, x[:1].to(device), dtype)
        check_features(x.flatten(1)[:, :1].float(), y, classes, "train")
        model = nn.Sequential(network, nn.Linear(features, classes, dtype=dtype)).to(device)
        descent = torch.optim.Adam(model.parameters(), lr=learning_rate)
        model.train()
        for _ in range(epochs):
            for batch in torch.split(torch.randperm(len(x)), batch_size):
                if len(batch) > 1:
                    step(model, to_unit(x[batch].to(device), dtype), y[batch].to(device), descent)
    predicted = _predict(model.eval(), test[0], dtype, device)
    return classification_scores(predicted, torch.from_numpy(test[1]), classes)


def _features(network: nn.Module, sample: Tensor, dtype: torch.dtype) -> int:
    with torch.no_grad():
        width: int = network.eval()(to_unit(sample, dtype)).shape[1]
    return width


def _predict(
    model: nn.Module,
    samples: Samples,
    dtype: torch.dtype,
    device: torch.device | str,
    size: int = 512,
) -> Tensor:
    parts = []
    with torch.no_grad():
        for start in range(0, len(samples), size):
            x = torch.tensor(samples[start : start + size]).to(device)
            parts.append(model(to_unit(x, dtype)).argmax(dim=1).cpu())
    return torch.cat(parts)
