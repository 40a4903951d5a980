"""Bases of the data sets: where samples are, which ones are taken, and their form.

A data set implements how to open one half, "train" or "test". The bases merge halves, draw
subsets, resize, and build the loaders for plain Lightning.
"""

import os
from abc import abstractmethod
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
import torch
from lightning import LightningDataModule
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from coterie.config.component import Component
from coterie.config.given_path import given_path
from coterie.contract.data import DataArrays
from coterie.contract.samples import StreamedSamples
from coterie.datamodules.resize import resize_images
from coterie.datamodules.source import OnError, Samples, Source, merge_sources
from coterie.errors import DataError

Half = Literal["train", "test"]
HALVES: tuple[Half, Half] = ("train", "test")
Pixels = Annotated[int, Field(ge=1)]
ROOT_VARIABLE = "COTERIE_DATA"


class DataConfig(Component):
    """Config keys of all data sets."""

    split: Literal["train", "test", "all"] = "train"
    """Which samples are federated. With "train" the test set is held out; "all" merges the two."""

    size: Pixels | tuple[Pixels, Pixels] | None = None
    """Resize images to this height and width in pixels, or to [height, width]; by default they are
    not resized."""

    limit: int | None = Field(default=None, ge=1)
    """Maximum number of federated samples, drawn with the classes' proportions."""

    limit_test: int | None = Field(default=None, ge=1)
    """Maximum number of held-out samples; no effect if nothing is held out."""


class ImageConfig(DataConfig):
    """Config keys of the data sets in the common folder."""

    root: str | None = None
    """Folder of the data sets; by default the environment variable COTERIE_DATA."""

    rgb: bool = False
    """Whether grey images get three equal channels, for encoders of colour images."""


ConfigT = TypeVar("ConfigT", bound=DataConfig)
ImageConfigT = TypeVar("ImageConfigT", bound=ImageConfig)


class DataSet(LightningDataModule, Generic[ConfigT]):
    """Base of the data sets; a subclass adds `title` and `open_half`, and `classes` if known.

    Attributes:
        classes: Names of the classes, in the order of the labels; empty if the files hold them.
        batch_size: Samples per batch of the loaders, which a federated run does not use.
    """

    classes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: ConfigT, batch_size: int = 128) -> None:
        super().__init__()
        self.config, self.batch_size = config, batch_size
        self._loaded: DataArrays | None = None

    @property
    @abstractmethod
    def title(self) -> str:
        """Name of the data set in tables and in the summary."""

    @abstractmethod
    def open_half(self, half: Half) -> Source:
        """Find and open the training or the test set.

        Raises:
            DataError: If it is missing or unreadable.
        """

    def has_test(self) -> bool:
        """Return whether there is a test set."""
        return True

    @property
    def streams(self) -> bool:
        """Whether samples are read when they are needed, instead of all at the start."""
        return False

    @property
    def on_error(self) -> OnError:
        """What to do about pictures that cannot be read."""
        return "refuse"

    def as_shown(self, source: Source) -> Source:
        """Return a source whose pictures are read as a run reads them."""
        return source

    def open_all(self) -> Source:
        """Open the training set, followed by the test set if there is one."""
        train = self.open_half("train")
        return merge_sources(train, self.open_half("test")) if self.has_test() else train

    def arrays(self) -> DataArrays:
        """Read the data set in its original order, once.

        Returns:
            uint8 images (n, channels, height, width), or float32 feature vectors (n, features).

        Raises:
            DataError: If it is missing (of what, where, how to get it) or unreadable.
        """
        if self._loaded is None:
            self._loaded = self._read_whole()
        return self._loaded

    def _read_whole(self) -> DataArrays:
        config = self.config
        if config.split == "test" and not self.has_test():
            raise DataError(f"data.split=test: {self.title} has no test set; use split=all.")
        source = self.open_all() if config.split == "all" else self.open_half(config.split)
        samples, taken = self._take(source, config.limit)
        test_samples, test, skipped = None, None, taken.skipped
        if config.split == "train" and self.has_test():
            test_samples, test = self._take(self.open_half("test"), config.limit_test)
            skipped = (*skipped, *test.skipped)
        return DataArrays(
            name=self.title,
            samples=samples,
            labels=taken.labels,
            test_samples=test_samples,
            test_labels=None if test is None else test.labels,
            classes=self.classes or taken.classes,
            owners=taken.owners,
            owner_names=taken.owner_names,
            names=taken.own_names,
            test_names=() if test is None else test.own_names,
            skipped=skipped,
            features=taken.features,
        )

    def setup(self, stage: str | None = None) -> None:
        """Read the data set for the loaders."""
        self.arrays()

    def train_dataloader(self) -> DataLoader[Any]:
        """Return shuffled batches of the selected samples; a last batch of one is left out.

        They are dicts as the modules take them (`coterie.contract.client.Batch`): samples,
        positions and, if there are any, labels.
        """
        data = self.arrays()
        return self._loader(data.samples, data.labels, shuffle=True)

    def test_dataloader(self) -> DataLoader[Any]:
        """Return batches of all held-out samples, in order.

        Raises:
            DataError: If nothing is held out.
        """
        data = self.arrays()
        if data.test_samples is None:
            raise DataError(
                f"{self.title}: split={self.config.split} holds nothing out to test on; "
                "use split=train."
            )
        return self._loader(data.test_samples, data.test_labels, shuffle=False)

    def _take(self, source: Source, limit: int | None) -> tuple[Samples | StreamedSamples, Source]:
        chosen = self.as_shown(source.subset(limit))
        if self.streams:
            chosen = chosen.look_through(self.on_error)
            return chosen.stream(), chosen
        loaded, chosen = chosen.load(self.on_error)
        samples = np.ascontiguousarray(loaded)
        if self.config.size is not None:
            if samples.dtype != np.uint8:
                raise DataError(f"data.size: {self.title} holds feature vectors; leave it out.")
            samples = resize_images(samples, self.config.size)
        return samples, chosen

    def _loader(
        self,
        samples: Samples | StreamedSamples,
        labels: NDArray[np.int64] | None,
        *,
        shuffle: bool,
    ) -> DataLoader[Any]:
        rows = _Rows(samples, labels)
        alone = shuffle and len(rows) % self.batch_size == 1  # batch norm needs two
        return DataLoader(rows, batch_size=self.batch_size, shuffle=shuffle, drop_last=alone)


class _Rows(Dataset[dict[str, Tensor]]):
    """Samples and labels for a DataLoader, which reads a batch's rows at once."""

    def __init__(
        self, samples: Samples | StreamedSamples, labels: NDArray[np.int64] | None
    ) -> None:
        self.samples, self.labels = samples, labels

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: list[int]) -> list[dict[str, Tensor]]:
        places = np.array(rows, dtype=np.int64)
        parts = {"samples": self.samples[places], "positions": places}
        if self.labels is not None:
            parts["labels"] = self.labels[places]
        read = {name: torch.from_numpy(part) for name, part in parts.items()}
        return [dict(zip(read, row, strict=True)) for row in zip(*read.values(), strict=True)]


class ImageDataModule(DataSet[ImageConfigT]):
    """Base of the data sets in the common folder."""

    def root(self) -> Path:
        """Return the folder of the data sets.

        Raises:
            DataError: If neither the config nor the environment names one.
        """
        root = self.config.root or os.environ.get(ROOT_VARIABLE)
        if not root:
            raise DataError(
                f"{self.title}: no folder to read from; set data.root or the environment variable "
                f"{ROOT_VARIABLE} to the folder that holds the data sets."
            )
        return given_path("data.root" if self.config.root else ROOT_VARIABLE, root)

    def _take(self, source: Source, limit: int | None) -> tuple[Samples | StreamedSamples, Source]:
        samples, taken = super()._take(source, limit)
        if self.config.rgb and isinstance(samples, np.ndarray) and samples.shape[1] == 1:
            samples = samples.repeat(3, axis=1)
        return samples, taken
