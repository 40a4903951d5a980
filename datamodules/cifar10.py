"""CIFAR-10, from parquet files or from the original Python pickles."""

from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import Field

from coterie.datamodules.base import (
    ROOT_VARIABLE,
    Half,
    ImageConfig,
    ImageDataModule,
)
from coterie.datamodules.parquet_images import find_parquet, open_parquet_images
from coterie.datamodules.source import Source, source_from_arrays
from coterie.errors import DataError

_FOLDER = "cifar10"
_PICKLES = "cifar-10-batches-py"


def read_pickles(root: Path, half: Half) -> Source:
    """Open one half in torchvision's layout; torchvision verifies checksums before unpickling."""
    # torchvision takes a second to import, and parquet files do not need it.
    from torchvision import datasets

    try:
        data = datasets.CIFAR10(root=str(root), train=half == "train", download=False)
    except (OSError, RuntimeError) as error:
        raise DataError(
            f"{root / _PICKLES} is incomplete or corrupt; fetch cifar-10-python.tar.gz again and "
            f"unpack it in {root}."
        ) from error
    images = np.ascontiguousarray(data.data.transpose(0, 3, 1, 2))
    return source_from_arrays(images, np.asarray(data.targets, dtype=np.int64))


class CIFAR10(ImageDataModule["CIFAR10.Config"]):
    """Natural images: 50,000 + 10,000, RGB, 32×32, 10 classes.

    Reads <root>/<folder>/{train,test}*.parquet, or the same one folder below; failing that, with
    the default folder, <root>/cifar-10-batches-py.
    """

    class Config(ImageConfig):
        """Config of CIFAR-10."""

        folder: str = Field(default=_FOLDER, min_length=1)
        """Folder of the parquet files in the root, and name of the data set in results."""

    classes: ClassVar[tuple[str, ...]] = (
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    )

    @property
    def title(self) -> str:
        """Name of the folder: a re-encoded copy must not pass for the original in results."""
        return self.config.folder

    def open_half(self, half: Half) -> Source:
        """Find and open the 50,000 training or the 10,000 test images."""
        folder = self.root() / self.config.folder
        files = find_parquet(folder, half)
        if files:
            return open_parquet_images(files, "RGB", len(self.classes))
        # Another folder holds another version of the pictures, which the pickles are not.
        if self.config.folder == _FOLDER and (self.root() / _PICKLES).is_dir():
            return read_pickles(self.root(), half)
        raise DataError(
            f"{self.title}: no {half}*.parquet in {folder} or one folder below, and no {_PICKLES}/ "
            f"in {self.root()}; fetch uoft-cs/cifar10 from the Hugging Face hub into {folder}, or "
            f"set data.root or {ROOT_VARIABLE} to the folder that holds {self.config.folder}/."
        )
