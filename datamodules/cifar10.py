"""CIFAR-10, from parquet files or from the original Python pickles."""

import hashlib
import pickle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from coterie.datamodules.base import (
    ROOT_VARIABLE,
    Half,
    ImageConfig,
    ImageDataModule,
)
from coterie.datamodules.parquet_images import find_parquet, open_parquet_images
from coterie.datamodules.remote import read_whole
from coterie.datamodules.source import Source, source_from_arrays
from coterie.errors import DataError

_FOLDER = "cifar10"
_PICKLES = "cifar-10-batches-py"


def read_originals(root: Path, theirs: Any, half: Half | None) -> list[dict[str, Any]]:
    """Unpickle the files of one half, or that of the classes' names, of a data set of torchvision.

    Each is read once, and what is unpickled are the bytes of which torchvision has the MD5.

    Raises:
        DataError: If a file is missing or modified.
    """
    meta = [(theirs.meta["filename"], theirs.meta["md5"])]
    lists = {"train": theirs.train_list, "test": theirs.test_list, None: meta}
    folder, found = root / theirs.base_folder, []
    for name, md5 in lists[half]:
        try:
            content = read_whole(folder / name)
        except (OSError, ValueError):
            content = b""
        if hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
            raise DataError(
                f"{folder} is incomplete or corrupt; fetch {theirs.filename} again and unpack it "
                f"in {root}."
            )
        found.append(pickle.loads(content, encoding="latin1"))  # noqa: S301 - the original
    return found


def read_pictures(root: Path, theirs: Any, half: Half, labels: str) -> Source:
    """Open one half in torchvision's layout.

    Raises:
        DataError: As `read_originals`.
    """
    batches = read_originals(root, theirs, half)
    images = np.concatenate([batch["data"] for batch in batches]).reshape(-1, 3, 32, 32)
    return source_from_arrays(images, np.concatenate([batch[labels] for batch in batches]))


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
            # torchvision takes a second to import, and parquet files do not need it.
            from torchvision import datasets

            return read_pictures(self.root(), datasets.CIFAR10, half, "labels")
        raise DataError(
            f"{self.title}: no {half}*.parquet in {folder} or one folder below, and no {_PICKLES}/ "
            f"in {self.root()}; fetch uoft-cs/cifar10 from the Hugging Face hub into {folder}, or "
            f"set data.root or {ROOT_VARIABLE} to the folder that holds {self.config.folder}/."
        )
