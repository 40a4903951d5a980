"""The linear probe: a linear classifier on frozen features."""

import math
from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LRScheduler

from coterie.config.schema import ProbeOptimizer
from coterie.evaluation.classification_metrics import check_features, classification_scores


def linear_probe(
    train_x: Tensor,
    train_y: Tensor,
    test_x: Tensor,
    test_y: Tensor,
    *,
    classes: int,
    seed: int,
    optimizer: ProbeOptimizer = "adam",
    epochs: int = 200,
    steps: int | None = None,
    batch_size: int = 512,
) -> dict[str, float]:
    """Train one linear layer on frozen features and score it after the last epoch.

    Cross-entropy; ⌈n / batch_size⌉ steps per epoch, over a new permutation, on the device of
    `train_x`. "adam": constant rate 3e-3 (FedU's protocol). "sgd": momentum 0.9, rate
    30·batch_size/256, times ½(1 + cos(π t/T)) at step t of T (Orchestra's). The result depends on
    the seed alone; the global random state is neither used nor changed.

    Args:
        train_x: Features (n, d), from the encoder in eval mode.
        train_y: Classes (n,), in 0..classes−1.
        test_x: Features (m, d).
        test_y: Classes (m,).
        classes: The number of classes.
        seed: Seed of the initial weights and the order of the batches.
        optimizer: The protocol.
        epochs: Passes over the training features.
        steps: Steps in their place, where given.
        batch_size: Samples per step.

    Returns:
        See `classification_scores`.

    Raises:
        DataError: If shapes, labels or values do not fit.
    """
    check_features(train_x, train_y, classes, "train")
    check_features(test_x, test_y, classes, "test")
    device = train_x.device
    generator = torch.Generator().manual_seed(seed)
    head = linear_layer(train_x.shape[1], classes, generator).to(device)
    steps = epochs * math.ceil(len(train_x) / batch_size) if steps is None else steps
    descent, schedule = _descent(head, optimizer, batch_size, steps)
    x, y = _features(train_x, device), train_y.to(device)
    for rows in islice(_batches(len(x), batch_size, generator), steps):
        step(head, x[rows.to(device)], y[rows.to(device)], descent)
        schedule.step()
    with torch.no_grad():
        predicted = head(_features(test_x, device)).argmax(dim=1)
    return classification_scores(predicted, test_y.to(device), classes)


def standardised(train_x: Tensor, test_x: Tensor) -> tuple[Tensor, Tensor]:
    """Scale features to mean 0 and standard deviation 1 over the training samples.

    The optimal linear classifier is the same with and without. An optimiser comes nearer to it
    where the representation is far from zero or very small. Constant features are only shifted.

    Args:
        train_x: Features (n, d), which give mean and deviation.
        test_x: Features (m, d).

    Returns:
        Both in float32.
    """
    train, test = train_x.detach().double(), test_x.detach().double()
    deviation, mean = torch.std_mean(train, dim=0, correction=0)
    deviation = torch.where(deviation > 0, deviation, 1.0)
    return ((train - mean) / deviation).float(), ((test - mean) / deviation).float()


def _features(x: Tensor, device: torch.device) -> Tensor:
    return x.detach().to(device=device, dtype=torch.float32)


def linear_layer(features: int, classes: int, generator: torch.Generator) -> nn.Linear:
    """Return a linear layer with PyTorch's default initial distribution, drawn from `generator`."""
    # The meta device keeps the layer's own initialisation from using the global random state.
    layer = nn.Linear(features, classes, device="meta").to_empty(device="cpu")
    bound = features**-0.5
    nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
    nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
    return layer


def _batches(samples: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield the rows of each step: a new permutation every epoch, the last batch included."""
    while True:
        order = torch.randperm(samples, generator=generator)
        for first in range(0, samples, batch_size):
            yield order[first : first + batch_size]


def _descent(
    head: nn.Linear, optimizer: ProbeOptimizer, batch_size: int, steps: int
) -> tuple[torch.optim.Optimizer, LRScheduler]:
    """Return the protocol's optimiser, with its learning rate over `steps` steps."""
    if optimizer == "adam":
        adam = torch.optim.Adam(head.parameters(), lr=3e-3)
        return adam, ConstantLR(adam, factor=1.0)
    sgd = torch.optim.SGD(head.parameters(), lr=30 * batch_size / 256, momentum=0.9)
    return sgd, CosineAnnealingLR(sgd, T_max=steps)


def step(model: nn.Module, x: Tensor, y: Tensor, descent: torch.optim.Optimizer) -> None:
    """Take one step down the cross-entropy of a batch's classes."""
    descent.zero_grad()
    torch.autograd.backward(nn.functional.cross_entropy(model(x), y))
    descent.step()
