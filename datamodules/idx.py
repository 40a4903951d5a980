"""Data sets in IDX files (MNIST's format), in torchvision's layout."""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coterie.config.growth import check_growth, most_from
from coterie.datamodules.base import HALVES, ROOT_VARIABLE, Half
from coterie.datamodules.downloaded import DownloadConfigT, DownloadedDataModule
from coterie.datamodules.partitions import Labels
from coterie.datamodules.remote import opened, read_whole
from coterie.datamodules.source import Images, Source, source_from_arrays
from coterie.errors import DataError

_UINT8, _DIMENSIONS = 8, 3
"""The type code of unsigned bytes in an IDX header, and the most dimensions."""


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes, gzipped if its name ends in .gz.

    The format: two zero bytes, the type code, the number of dimensions; each dimension as a
    big-endian 32-bit integer; the values.

    Raises:
        DataError: If the file does not have that format.
    """
    try:
        content = _unzipped(path) if path.suffix == ".gz" else read_whole(path)
    except (OSError, EOFError, MemoryError, ValueError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}); fetch it again.") from error
    if len(content) < 4 or content[:3] != bytes((0, 0, _UINT8)) or content[3] > _DIMENSIONS:
        raise DataError(f"{path} is not an IDX file of unsigned bytes; fetch it again.")
    start = 4 + 4 * content[3]
    extents = content[4:start] if len(content) >= start else b""
    shape = tuple(int(extent) for extent in np.frombuffer(extents, dtype=">u4"))
    if len(content) < start or len(content) != start + math.prod(shape):
        raise DataError(
            f"{path} holds {len(content)} bytes, which do not fit its header; fetch it again."
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def _unzipped(path: Path) -> bytes:
    """Return the content of a gzipped file, unless it grows too much."""
    packed = path.stat().st_size
    with opened(path) as zipped, gzip.open(zipped) as file:
        content: bytes = file.read(most_from(packed) + 1)
    check_growth(packed, len(content))
    return content


class IDXDataModule(DownloadedDataModule[DownloadConfigT]):
    """Data set in <root>/<class name>/raw/<stem>-{images-idx3,labels-idx1}-ubyte[.gz]."""

    def stem(self, half: Half) -> str:
        """Return the prefix of the names of the training or test set's two files."""
        return {"train": "train", "test": "t10k"}[half]

    def open_half(self, half: Half) -> Source:
        """Find and open the training or the test set."""
        images, labels = self.read_half(half, len(self.classes))
        return source_from_arrays(images[:, None], labels)

    def read_half(self, half: Half, classes: int, first: int = 0) -> tuple[Images, Labels]:
        """Read images (n, height, width) and labels in 0..classes - 1.

        `first` is the file's label of the first class.

        Raises:
            DataError: If a file is missing or corrupt, or images and labels do not fit.
        """
        self.prepare_data()
        images_path = self._find(f"{self.stem(half)}-images-idx3-ubyte")
        labels_path = self._find(f"{self.stem(half)}-labels-idx1-ubyte")
        images, labels = read_idx(images_path), read_idx(labels_path)
        if images.ndim != 3 or 0 in images.shape[1:] or labels.shape != images.shape[:1]:
            raise DataError(
                f"{images_path} has shape {images.shape} and {labels_path} has {labels.shape}; "
                "fetch both again."
            )
        wrong = labels[(labels < first) | (labels >= first + classes)]
        if wrong.size:
            raise DataError(
                f"{labels_path} holds the label {wrong.max()}, but {self.title} has {classes} "
                "classes; fetch it again."
            )
        return images, labels.astype(np.int64) - first

    def _folder(self) -> Path:
        return self.root() / type(self).__name__ / "raw"

    def _candidates(self, name: str) -> list[Path]:
        return [self._folder() / name, self._folder() / f"{name}.gz"]

    def complete(self) -> bool:
        """Return whether images and labels of training and test set are there."""
        names = [
            f"{self.stem(half)}-{kind}-ubyte"
            for half in HALVES
            for kind in ("images-idx3", "labels-idx1")
        ]
        return all(any(path.is_file() for path in self._candidates(name)) for name in names)

    def _find(self, name: str) -> Path:
        for path in self._candidates(name):
            if path.is_file():
                return path
        raise DataError(
            f"{self.title}: no {name} or {name}.gz in {self._folder()}; set data.root or "
            f"{ROOT_VARIABLE} to the folder that holds {type(self).__name__}/, or set "
            "data.download=true."
        )
