"""USPS postal digits, from parquet files or from the bzip2 files of LIBSVM."""

import bz2
import io
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from coterie.config.growth import check_growth, most_from
from coterie.datamodules.base import (
    ROOT_VARIABLE,
    Half,
    ImageConfig,
    ImageDataModule,
)
from coterie.datamodules.parquet_images import find_parquet, open_parquet_images
from coterie.datamodules.remote import opened
from coterie.datamodules.source import Source, source_from_arrays
from coterie.errors import DataError, reason

_BZ2 = {"train": "usps.bz2", "test": "usps.t.bz2"}
_LABELS = tuple(b"%d" % label for label in range(1, 11))
_PIXELS, _LONGEST = 16 * 16, 32
"""Values of a line, and characters of each."""


def read_bz2(root: Path, half: Half) -> Source:
    """Open one half from the LIBSVM files usps.bz2 and usps.t.bz2.

    Raises:
        DataError: If the file is corrupt, or grows too much.
    """
    path = root / _BZ2[half]
    try:
        packed = path.stat().st_size
        with opened(path) as file, bz2.open(file) as zipped:
            content = zipped.read(most_from(packed) + 1)
        check_growth(packed, len(content))
        rows = [_row(line) for line in io.BytesIO(content)]
        images = np.stack([image for _, image in rows])
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({reason(error)}); fetch it again.") from error
    return source_from_arrays(images, np.array([label for label, _ in rows], dtype=np.int64))


def _row(line: bytes) -> tuple[int, NDArray[np.uint8]]:
    """Return the label and the image of a line `label 1:value … 256:value`.

    Labels are 1 to 10, and values between -1 and 1, which become grey levels as in torchvision.
    """
    label, *values = line.split(None, _PIXELS + 1)[: _PIXELS + 2]
    if len(values) != _PIXELS or max(map(len, values)) > _LONGEST:
        raise ValueError(f"a line does not have {_PIXELS} values")
    row = np.array([float(value.rpartition(b":")[2]) for value in values], dtype=np.float32)
    if label not in _LABELS or not (np.abs(row) <= 1).all():
        raise ValueError("a label is not of 1 to 10, or a value not between -1 and 1")
    return _LABELS.index(label), ((row + 1) / 2 * 255).astype(np.uint8).reshape(1, 16, 16)


class USPS(ImageDataModule[ImageConfig]):
    """Postal digits: 7,291 + 2,007 grey images, 16×16, 10 classes.

    Reads <root>/usps/{train,test}*.parquet, or the same one folder below; failing that,
    usps.bz2 and usps.t.bz2 in the root.
    """

    class Config(ImageConfig):
        """Config of USPS."""

    classes: ClassVar[tuple[str, ...]] = tuple(str(digit) for digit in range(10))
    title = "usps"

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
