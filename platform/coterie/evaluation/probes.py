"""The linear probe: how well a linear classifier does on frozen features."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LRScheduler
from torchmetrics.functional.classification import multiclass_f1_score

from coterie.config.schema import ProbeOptimizer
from coterie.errors import DataError


@dataclass(frozen=True, kw_only=True)
class ClassificationScores:
    """How well classes are predicted.

    Attributes:
        acc: Accuracy, in 0..1.
        f1_macro: Mean over the classes of the F1 score, in 0..1; classes that are neither true nor
            predicted are left out.
    """

    acc: float
    f1_macro: float


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
    batch_size: int = 512,
    lr: float | None = None,
    device: torch.device | str | None = None,
) -> ClassificationScores:
    """Train one linear layer on frozen features and score it after the last epoch.

    Cross-entropy; ⌈n / batch_size⌉ steps an epoch, over a fresh permutation. "adam": constant rate,
    3e-3 by default (FedU's protocol). "sgd": momentum 0.9, rate 30·batch_size/256 by default, times
    ½(1 + cos(π t/T)) at step t of T (Orchestra's). The result depends on the seed alone; the global
    random state is neither used nor changed.

    Args:
        train_x: Features (n, d), from the encoder in eval mode.
        train_y: Classes (n,), in 0..classes−1.
        test_x: Features (m, d).
        test_y: Classes (m,).
        classes: The number of classes.
        seed: Of the initial weights and the order of the batches.
        optimizer: Which of the two protocols.
        epochs: Passes over the training features.
        batch_size: Samples a step.
        lr: The initial learning rate; None for the protocol's.
        device: Where to train; None for where `train_x` is.

    Raises:
        DataError: If shapes, labels or values do not fit, or an option is out of range.
    """
    check_features(train_x, train_y, classes, "train")
    check_features(test_x, test_y, classes, "test")
    _check_options(optimizer, epochs, batch_size, lr)
    device = train_x.device if device is None else torch.device(device)
    generator = torch.Generator().manual_seed(seed)
    head = linear_layer(train_x.shape[1], classes, generator).to(device)
    steps = epochs * math.ceil(len(train_x) / batch_size)
    descent, schedule = _descent(head, optimizer, batch_size, lr, steps)
    x, y = _features(train_x, device), train_y.to(device)
    for rows in _batches(len(x), batch_size, epochs, generator):
        _step(head, x[rows.to(device)], y[rows.to(device)], descent)
        schedule.step()
    with torch.no_grad():
        predicted = head(_features(test_x, device)).argmax(dim=1)
    return classification_scores(predicted, test_y.to(device), classes)


def standardised(train_x: Tensor, test_x: Tensor) -> tuple[Tensor, Tensor]:
    """Features with mean 0 and standard deviation 1 over the training samples.

    A linear classifier's best is the same with and without; what changes is how near an optimiser
    comes to it where the representation lies far from zero, or is very small. Constant features
    are only shifted.

    Args:
        train_x: Features (n, d), which say mean and deviation.
        test_x: Features (m, d).

    Returns:
        Both in float32.
    """
    train, test = train_x.detach().double(), test_x.detach().double()
    deviation, mean = torch.std_mean(train, dim=0, correction=0)
    deviation = torch.where(deviation > 0, deviation, 1.0)
    return ((train - mean) / deviation).float(), ((test - mean) / deviation).float()


def classification_scores(predicted: Tensor, y: Tensor, classes: int) -> ClassificationScores:
    """Accuracy and macro F1 of predicted against true classes, both int64 (n,)."""
    f1 = multiclass_f1_score(predicted, y, num_classes=classes, average="macro")
    return ClassificationScores(acc=float((predicted == y).double().mean()), f1_macro=float(f1))


def check_features(x: Tensor, y: Tensor, classes: int, name: str) -> None:
    """Refuse features that are not finite (n, d) or labels that are not integers in 0..classes−1.

    Raises:
        DataError: With the name, the offending value and what is expected.
    """
    if x.ndim != 2 or y.ndim != 1 or len(x) != len(y) or len(x) == 0:
        raise DataError(
            f"{name} features {tuple(x.shape)} and labels {tuple(y.shape)}: give (n, d) and (n,)."
        )
    if y.is_floating_point() or int(y.min()) < 0 or int(y.max()) >= classes:
        raise DataError(
            f"{name} labels in {y.min().item()}..{y.max().item()}: give integers in "
            f"0..{classes - 1}."
        )
    bad = int((~torch.isfinite(x)).any(dim=1).sum())
    if bad:
        raise DataError(
            f"{bad} of {len(x)} {name} features are not finite: check the encoder that made them."
        )


def _check_options(optimizer: str, epochs: int, batch_size: int, lr: float | None) -> None:
    if optimizer not in ("adam", "sgd"):
        raise DataError(f"optimizer={optimizer}: choose adam or sgd.")
    for name, value in (("epochs", epochs), ("batch_size", batch_size), ("lr", lr)):
        if value is not None and value <= 0:
            raise DataError(f"{name}={value}: give a positive number.")


def _features(x: Tensor, device: torch.device) -> Tensor:
    return x.detach().to(device=device, dtype=torch.float32)


def linear_layer(features: int, classes: int, generator: torch.Generator) -> nn.Linear:
    """A linear layer with PyTorch's own initial distribution, drawn from `generator`."""
    # On the meta device the layer's own initialisation draws nothing from the global state.
    layer = nn.Linear(features, classes, device="meta").to_empty(device="cpu")
    bound = features**-0.5
    nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
    nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
    return layer


def _batches(
    samples: int, batch_size: int, epochs: int, generator: torch.Generator
) -> Iterator[Tensor]:
    """The rows of each step: every epoch a fresh permutation, its last batch kept."""
    for _ in range(epochs):
        order = torch.randperm(samples, generator=generator)
        for first in range(0, samples, batch_size):
            yield order[first : first + batch_size]


def _descent(
    head: nn.Linear, optimizer: ProbeOptimizer, batch_size: int, lr: float | None, steps: int
) -> tuple[torch.optim.Optimizer, LRScheduler]:
    """The protocol's optimiser and its learning rate over `steps` steps."""
    if optimizer == "adam":
        adam = torch.optim.Adam(head.parameters(), lr=3e-3 if lr is None else lr)
        return adam, ConstantLR(adam, factor=1.0)
    rate = 30 * batch_size / 256 if lr is None else lr
    sgd = torch.optim.SGD(head.parameters(), lr=rate, momentum=0.9)
    return sgd, CosineAnnealingLR(sgd, T_max=steps)


def _step(head: nn.Linear, x: Tensor, y: Tensor, descent: torch.optim.Optimizer) -> None:
    descent.zero_grad()
    torch.autograd.backward(nn.functional.cross_entropy(head(x), y))
    descent.step()
