"""SVHN's house numbers, from MATLAB files in torchvision's layout."""

import zlib
from pathlib import Path
from typing import ClassVar

import numpy as np

from coterie.datamodules.base import HALVES, ROOT_VARIABLE, Half
from coterie.datamodules.downloaded import DownloadConfig, DownloadedDataModule
from coterie.datamodules.matlab import read_matlab
from coterie.datamodules.remote import read_whole
from coterie.datamodules.source import Source, source_from_arrays
from coterie.errors import DataError, reason


class SVHN(DownloadedDataModule[DownloadConfig]):
    """Digits of house numbers: 73,257 + 26,032, RGB, 32×32, 10 classes.

    Reads <root>/{train,test}_32x32.mat. Shapes are checked; checksums are not.
    """

    class Config(DownloadConfig):
        """Config of SVHN."""

    classes: ClassVar[tuple[str, ...]] = tuple(str(digit) for digit in range(10))
    files: ClassVar[tuple[str, ...]] = tuple(f"{half}_32x32.mat" for half in HALVES)
    title = "svhn"

    def open_half(self, half: Half) -> Source:
        """Find and open the 73,257 training or the 26,032 test images."""
        self.prepare_data()
        path = self._path(half)
        if not path.is_file():
            raise DataError(
                f"svhn: no {path.name} in {path.parent}; put it there, set data.root or "
                f"{ROOT_VARIABLE} to the folder that holds it, or set data.download=true."
            )
        try:
            content = read_matlab(read_whole(path))
            images, labels = content["X"], content["y"].reshape(-1).astype(np.int64)
        except (OSError, ValueError, LookupError, zlib.error) as error:
            raise DataError(f"{path} cannot be read ({reason(error)}); fetch it again.") from error
        if images.shape != (32, 32, 3, len(labels)) or images.dtype != np.uint8:
            raise DataError(
                f"{path} holds {images.dtype} images of shape {images.shape} and {len(labels)} "
                "labels; fetch it again."
            )
        if labels.size and not 1 <= labels.min() <= labels.max() <= 10:
            raise DataError(f"{path} holds labels beyond 1..10; fetch it again.")
        # MATLAB counts from 1: the file's class 10 is the digit 0.
        return source_from_arrays(images.transpose(3, 2, 0, 1), labels % 10)

    def fetch(self, root: Path) -> None:
        """Download both halves."""
        from torchvision import datasets

        for half in HALVES:
            datasets.SVHN(root=str(root), split=half, download=True)

    def _path(self, half: Half) -> Path:
        return self.root() / f"{half}_32x32.mat"
