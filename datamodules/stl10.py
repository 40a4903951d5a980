"""STL-10, from its binary files in torchvision's layout."""

from pathlib import Path
from typing import ClassVar

import numpy as np

from coterie.contract.data import Indices
from coterie.datamodules.base import ROOT_VARIABLE, Half
from coterie.datamodules.downloaded import DownloadConfig, DownloadedDataModule
from coterie.datamodules.source import Images, Source, merge_sources
from coterie.datamodules.stored_rows import StoredRows
from coterie.errors import DataError

_FOLDER = "stl10_binary"
_SHAPE = (3, 96, 96)
_BYTES = 3 * 96 * 96
_FILES = ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin", "unlabeled_X.bin")


class STL10(DownloadedDataModule["STL10.Config"]):
    """Natural images: 5,000 + 8,000, RGB, 96×96, 10 classes; 100,000 more without a label.

    Reads <root>/stl10_binary/{train,test}_{X,y}.bin and unlabeled_X.bin. Sizes are checked;
    checksums are not.
    """

    class Config(DownloadConfig):
        """Config of STL-10."""

        unlabelled: bool = False
        """Whether to append the 100,000 unlabelled images, about 3 GB, to the federated ones."""

    classes: ClassVar[tuple[str, ...]] = (
        "airplane",
        "bird",
        "car",
        "cat",
        "deer",
        "dog",
        "horse",
        "monkey",
        "ship",
        "truck",
    )

    files: ClassVar[tuple[str, ...]] = tuple(f"{_FOLDER}/{name}" for name in _FILES)
    title = "stl10"

    def open_half(self, half: Half) -> Source:
        """Find and open the 5,000 training or the 8,000 test images."""
        self.prepare_data()
        source = self._open_images(f"{half}_X.bin")
        path = self._find(f"{half}_y.bin")
        labels = np.fromfile(path, np.uint8, source.count + 1).astype(np.int64) - 1
        if len(labels) != source.count or labels.min() < 0 or labels.max() >= len(self.classes):
            raise DataError(
                f"{path} holds {len(labels)} labels for {source.count} images, or labels beyond "
                f"1..{len(self.classes)}; fetch stl10_binary.tar.gz again."
            )
        labelled = Source(count=source.count, read=source.read, labels=labels)
        # The unlabelled images are federated, never held out.
        last = "test" if self.config.split != "train" else "train"
        if not self.config.unlabelled or half != last:
            return labelled
        return merge_sources(labelled, self._open_images("unlabeled_X.bin"))

    def _open_images(self, name: str) -> Source:
        path = self._find(name)
        size = path.stat().st_size
        if not size or size % _BYTES:
            raise DataError(
                f"{path} holds {size} bytes, which is not a whole number of 96×96 images; fetch "
                "stl10_binary.tar.gz again."
            )
        # Read row by row, so that a subset is cheap; the format is column-major.
        stored = StoredRows(path, 0, (size // _BYTES, *_SHAPE), np.dtype(np.uint8))

        def read(rows: Indices) -> Images:
            images: Images = stored[rows].transpose(0, 1, 3, 2)
            return images

        return Source(count=len(stored), read=read)

    def _find(self, name: str) -> Path:
        path = self.root() / _FOLDER / name
        if not path.is_file():
            raise DataError(
                f"{self.title}: no {name} in {path.parent}; unpack stl10_binary.tar.gz in "
                f"{self.root()}, set data.root or {ROOT_VARIABLE} to the folder that holds "
                f"{_FOLDER}/, or set data.download=true."
            )
        return path
