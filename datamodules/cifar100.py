"""CIFAR-100, from the original Python pickles in torchvision's layout."""

from dataclasses import replace
from typing import ClassVar, Literal

from coterie.datamodules.base import ROOT_VARIABLE, Half
from coterie.datamodules.cifar10 import read_originals, read_pictures
from coterie.datamodules.downloaded import DownloadConfig, DownloadedDataModule
from coterie.datamodules.source import Source
from coterie.errors import DataError

_FOLDER = "cifar-100-python"
_FILES = ("train", "test", "meta")


class CIFAR100(DownloadedDataModule["CIFAR100.Config"]):
    """Natural images: 50,000 + 10,000, RGB, 32×32, 100 classes or 20 superclasses of five.

    Reads <root>/cifar-100-python/{train,test,meta}, the originals alone.
    """

    class Config(DownloadConfig):
        """Config of CIFAR-100."""

        labels: Literal["fine", "coarse"] = "fine"
        """The 100 classes, or the 20 superclasses that CC and others cluster ("CIFAR-20")."""

    files: ClassVar[tuple[str, ...]] = tuple(f"{_FOLDER}/{name}" for name in _FILES)

    @property
    def title(self) -> str:
        """Name of the data set; "cifar20" is the literature's name of the superclasses."""
        return "cifar100" if self.config.labels == "fine" else "cifar20"

    def open_half(self, half: Half) -> Source:
        """Find and open the 50,000 training or the 10,000 test images."""
        from torchvision import datasets

        self.prepare_data()
        folder = self.root() / _FOLDER
        if not folder.is_dir():
            raise DataError(
                f"{self.title}: no {_FOLDER}/ in {self.root()}; unpack cifar-100-python.tar.gz "
                f"there, set data.root or {ROOT_VARIABLE} to the folder that holds {_FOLDER}/, or "
                "set data.download=true."
            )
        kind, root = self.config.labels, self.root()
        source = read_pictures(root, datasets.CIFAR100, half, f"{kind}_labels")
        (names,) = read_originals(root, datasets.CIFAR100, None)
        return replace(source, classes=tuple(names[f"{kind}_label_names"]))
