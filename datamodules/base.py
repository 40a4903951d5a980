"""What the image data sets share: where they lie, which samples are taken, and how they look.

A data set says how to open one half of itself ("train" or "test"). The rest is here: merging the
halves, subsets, resizing, and the loaders for users of plain Lightning.
"""

import os
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
import torch
from lightning import LightningDataModule
from numpy.typing import NDArray
from pydantic import Field
from torch.utils.data import DataLoader, TensorDataset

from coterie.config.component import Component
from coterie.contract.data import DataArrays, Indices
from coterie.errors import DataError
from datamodules.partitions import stratified_subset
from datamodules.resize import resize_images

Half = Literal["train", "test"]
Images = NDArray[np.uint8]
ROOT_VARIABLE = "COTERIE_DATA"


class ImageConfig(Component):
    """The keys that all image data sets have."""

    root: str | None = None
    """The folder that holds the data sets; by default the environment variable COTERIE_DATA."""

    split: Literal["train", "test", "all"] = "train"
    """Which samples are federated. With "train" the test set is held out; "all" merges the two."""

    size: int | None = Field(default=None, ge=1)
    """Resize the images to this height and width in pixels; by default they stay as they are."""

    limit: int | None = Field(default=None, ge=1)
    """Take at most this many federated samples, a random subset with the classes' proportions."""

    limit_test: int | None = Field(default=None, ge=1)
    """Take at most this many held-out samples; without effect when nothing is held out."""

    limit_seed: int = Field(default=0, ge=0)
    """The seed that chooses the subsets."""

    batch_size: int = Field(default=128, ge=1)
    """Samples per batch of the loaders for plain Lightning; federated runs have their own."""


ConfigT = TypeVar("ConfigT", bound=ImageConfig)


@dataclass(frozen=True, kw_only=True)
class ImageSource:
    """Labelled images that are decoded on demand, so that a small subset costs little.

    Attributes:
        labels: int64 classes (n,).
        read: Gives the images of some rows: int64 (m,) to uint8 (m, channels, height, width).
    """

    labels: NDArray[np.int64]
    read: Callable[[Indices], Images]

    def take(self, limit: int | None, seed: int) -> tuple[Images, NDArray[np.int64]]:
        """Images and labels in their original order, all or a stratified subset of them."""
        rows = np.arange(len(self.labels), dtype=np.int64)
        if limit is not None and limit < len(rows):
            rows = stratified_subset(self.labels, limit, seed)
        return np.ascontiguousarray(self.read(rows)), self.labels[rows]


def source_from_arrays(images: Images, labels: NDArray[np.int64]) -> ImageSource:
    """A source over images (n, channels, height, width) that are in memory already."""
    return ImageSource(labels=labels, read=lambda rows: images[rows])


def merge_sources(first: ImageSource, second: ImageSource) -> ImageSource:
    """The rows of `first`, then those of `second`."""
    count = len(first.labels)

    def read(rows: Indices) -> Images:
        # Rows come sorted, so all rows of `first` stand before those of `second`.
        cut = int(np.searchsorted(rows, count))
        if cut == 0:
            return second.read(rows - count)
        if cut == len(rows):
            return first.read(rows)
        return np.concatenate([first.read(rows[:cut]), second.read(rows[cut:] - count)])

    return ImageSource(labels=np.concatenate([first.labels, second.labels]), read=read)


class ImageDataModule(LightningDataModule, Generic[ConfigT]):
    """Base of the image data sets; a data set adds `title`, `classes` and `open_half`.

    Attributes:
        classes: The classes' names, in the order of the labels.
        config: The data set's config.
    """

    classes: ClassVar[tuple[str, ...]]

    def __init__(self, config: ConfigT) -> None:
        super().__init__()
        self.config = config
        self._loaded: DataArrays | None = None

    @property
    @abstractmethod
    def title(self) -> str:
        """The data set's name in tables and in the summary."""

    @abstractmethod
    def open_half(self, half: Half) -> ImageSource:
        """Find and open the training or the test set.

        Raises:
            DataError: If it is missing or unreadable.
        """

    def open_all(self) -> ImageSource:
        """The training set followed by the test set."""
        return merge_sources(self.open_half("train"), self.open_half("test"))

    def arrays(self) -> DataArrays:
        """Read the data set: uint8 images (n, channels, height, width) in their original order.

        Raises:
            DataError: If it is missing (what was looked for, where, how to get it) or unreadable.
        """
        config = self.config
        source = self.open_all() if config.split == "all" else self.open_half(config.split)
        samples, labels = self._take(source, config.limit)
        test_samples, test_labels = None, None
        if config.split == "train":
            test_samples, test_labels = self._take(self.open_half("test"), config.limit_test)
        return DataArrays(
            name=self.title,
            samples=samples,
            labels=labels,
            test_samples=test_samples,
            test_labels=test_labels,
            classes=self.classes,
        )

    def setup(self, stage: str | None = None) -> None:
        """Read the data set for the loaders, once."""
        self._data()

    def train_dataloader(self) -> DataLoader[Any]:
        """Shuffled batches (images uint8, labels int64) of the samples that `split` chooses."""
        data = self._data()
        return self._loader(data.samples, data.labels, shuffle=True)

    def test_dataloader(self) -> DataLoader[Any]:
        """Batches (images uint8, labels int64) of the held-out samples, in order.

        Raises:
            DataError: If nothing is held out.
        """
        data = self._data()
        if data.test_samples is None:
            raise DataError(
                f"{self.title}: split={self.config.split} holds nothing out to test on; "
                "use split=train."
            )
        return self._loader(data.test_samples, data.test_labels, shuffle=False)

    def root(self) -> Path:
        """The folder that holds the data sets.

        Raises:
            DataError: If neither the config nor the environment names one.
        """
        root = self.config.root or os.environ.get(ROOT_VARIABLE)
        if not root:
            raise DataError(
                f"{self.title}: no folder to read from; set data.root or the environment variable "
                f"{ROOT_VARIABLE} to the folder that holds the data sets."
            )
        return Path(root).expanduser()

    def _take(
        self, source: ImageSource, limit: int | None
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        images, labels = source.take(limit, self.config.limit_seed)
        if self.config.size is not None:
            images = resize_images(images, self.config.size)
        return images, labels

    def _data(self) -> DataArrays:
        if self._loaded is None:
            self._loaded = self.arrays()
        return self._loaded

    def _loader(
        self, samples: NDArray[Any], labels: NDArray[np.int64] | None, *, shuffle: bool
    ) -> DataLoader[Any]:
        tensors = [torch.from_numpy(array) for array in (samples, labels) if array is not None]
        return DataLoader(
            TensorDataset(*tensors), batch_size=self.config.batch_size, shuffle=shuffle
        )
