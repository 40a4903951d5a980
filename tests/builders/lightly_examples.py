"""lightly's examples as they are: a script's own module and loader, over a few real images.

The folder `examples/pytorch_lightning` of a clone of lightly is named by `LIGHTLY_EXAMPLES`. A
script runs unchanged; only its downloads give CIFAR-10's images that are there, and its Trainer
notes what it is given.
"""

import os
from pathlib import Path
from unittest import mock

import pytorch_lightning
import torch
import torchvision
from PIL import Image
from torch.utils.data import DataLoader, Dataset, Subset

from coterie.datamodules.cifar10 import CIFAR10

VARIABLE = "LIGHTLY_EXAMPLES"
SMALL, LARGE = (32, 8), (8, 4)
"""Images, and images a batch: of small views, and of large ones."""
MANY_VALUES = 100_000
"""Numbers in a sample's views from which on they are large."""


def examples():
    """The scripts by name; none where the variable names no folder."""
    folder = os.environ.get(VARIABLE)
    return {path.stem: path for path in sorted(Path(folder).glob("*.py"))} if folder else {}


class Images(Dataset):
    """The first images of CIFAR-10, in the place of a download."""

    def __init__(self, root, *, download=False, transform=None, target_transform=None, **_):
        self.transform, self.target_transform = transform, target_transform
        source = CIFAR10(CIFAR10.Config(limit=max(SMALL))).arrays()
        self.images = [Image.fromarray(each.transpose(1, 2, 0)) for each in source.samples]
        self.targets = source.labels.tolist()

    def __len__(self):
        return len(self.images)

    def __getitem__(self, row):
        image, target = self.images[row], self.targets[row]
        target = target if self.target_transform is None else self.target_transform(target)
        if self.transform is None:
            return image, target
        return self.transform(image), target


class _Noting:
    """Takes the place of a Trainer, and notes what it is to fit."""

    fitted = ()

    def __init__(self, **arguments):
        self.arguments = arguments

    def fit(self, model, train_dataloaders):
        _Noting.fitted = model, train_dataloaders, self.arguments


def _values(views):
    """How many numbers a sample's views have."""
    return views.numel() if torch.is_tensor(views) else sum(map(_values, views))


def open_example(path):
    """Run a script; its module, its loader with small batches, and its Trainer's arguments."""
    torch.manual_seed(0)
    datasets = torchvision.datasets
    space = {"__name__": f"lightly_example_{path.stem}"}
    with (
        mock.patch.object(pytorch_lightning, "Trainer", _Noting),
        mock.patch.object(datasets, "CIFAR10", Images),
        mock.patch.object(datasets, "VOCDetection", Images),
    ):
        exec(compile(path.read_text(), str(path), "exec"), space)
    module, loader, arguments = _Noting.fitted
    count, batch = LARGE if _values(loader.dataset[0][0]) > MANY_VALUES else SMALL
    small = DataLoader(
        Subset(loader.dataset, range(count)),
        batch_size=batch,
        shuffle=True,
        drop_last=loader.drop_last,
        collate_fn=loader.collate_fn,
    )
    own = {k: v for k, v in arguments.items() if k not in ("max_epochs", "devices", "accelerator")}
    return module, small, own
