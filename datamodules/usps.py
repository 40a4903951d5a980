"""USPS postal digits, from parquet files or from the bzip2 files that torchvision reads."""

from pathlib import Path
from typing import ClassVar

import numpy as np

from coterie.datamodules.base import (
    ROOT_VARIABLE,
    Half,
    ImageConfig,
    ImageDataModule,
)
from coterie.datamodules.parquet_images import find_parquet, open_parquet_images
from coterie.datamodules.source import Source, source_from_arrays
from coterie.errors import DataError

_BZ2 = {"train": "usps.bz2", "test": "usps.t.bz2"}


def read_bz2(root: Path, half: Half) -> Source:
    """Open one half from the LIBSVM files usps.bz2 and usps.t.bz2."""
    # torchvision takes a second to import, and parquet files do not need it.
    from torchvision import datasets

    try:
        data = datasets.USPS(root=str(root), train=half == "train", download=False)
    except (OSError, EOFError, ValueError, IndexError) as error:
        raise DataError(f"{root / _BZ2[half]} cannot be read ({error}); fetch it again.") from error
    return source_from_arrays(data.data[:, None], np.asarray(data.targets, dtype=np.int64))


class USPS(ImageDataModule[ImageConfig]):
    """Postal digits: 7,291 + 2,007 grey images, 16×16, 10 classes.

    Reads <root>/usps/{train,test}*.parquet, or the same one folder below; failing that,
    usps.bz2 and usps.t.bz2 in the root.
    """

    class Config(ImageConfig):
        """Config of USPS."""

    classes: ClassVar[tuple[str, ...]] = tuple(str(digit) for digit in range(10))

    @property
    def title(self) -> str:
        """Name of the data set."""
        return "usps"

    def open_half(self, half: Half) -> Source:
        """Find and open the 7,291 training or the 2,007 test images."""
        root = self.root()
        files = find_parquet(root / "usps", half)
        if files:
            return open_parquet_images(files, "L", len(self.classes))
        if (root / _BZ2[half]).is_file():
            return read_bz2(root, half)
        raise DataError(
            f"usps: no {half}*.parquet in {root / 'usps'} or one folder below, and no {_BZ2[half]} "
            f"in {root}; put either there, or set data.root or {ROOT_VARIABLE} to the folder that "
            "holds usps/."
        )
