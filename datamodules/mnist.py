"""MNIST and Fashion-MNIST, read from the original IDX files as torchvision lays them out."""

import gzip
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from coterie.errors import DataError
from datamodules.base import (
    ROOT_VARIABLE,
    Half,
    ImageConfig,
    ImageDataModule,
    ImageSource,
    source_from_arrays,
)

_STEMS = {"train": "train", "test": "t10k"}
_UINT8 = 8
"""The type code of unsigned bytes in an IDX header."""


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes, gzipped if its name ends in .gz.

    The format: two zero bytes, the type code, the number of dimensions; each dimension as a
    big-endian 32-bit integer; the values.

    Raises:
        DataError: If the file is not of that form or too short.
    """
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}); fetch it again.") from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _UINT8:
        raise DataError(f"{path} is no IDX file of unsigned bytes; fetch it again.")
    start = 4 + 4 * content[3]
    shape = tuple(int(extent) for extent in np.frombuffer(content[4:start], dtype=">u4"))
    if len(shape) != content[3] or len(content) != start + int(np.prod(shape, dtype=np.int64)):
        raise DataError(
            f"{path} holds {len(content)} bytes, which do not fit its header; fetch it again."
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


class _IDXConfig(ImageConfig):
    """Config of the data sets in IDX files."""

    download: bool = False
    """Let torchvision download the files into the root folder if they are not there yet."""


class _IDXDataModule(ImageDataModule[_IDXConfig]):
    """Reads <root>/<class name>/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte[.gz]."""

    def open_half(self, half: Half) -> ImageSource:
        """Find and open the 60,000 training or the 10,000 test images."""
        if self.config.download:
            self.prepare_data()
        images_path = self._find(f"{_STEMS[half]}-images-idx3-ubyte")
        labels_path = self._find(f"{_STEMS[half]}-labels-idx1-ubyte")
        images, labels = read_idx(images_path), read_idx(labels_path)
        if images.ndim != 3 or labels.shape != images.shape[:1]:
            raise DataError(
                f"{images_path} has shape {images.shape} and {labels_path} has {labels.shape}; "
                "fetch both again."
            )
        if labels.size and int(labels.max()) >= len(self.classes):
            raise DataError(
                f"{labels_path} holds the label {labels.max()}, but {self.title} has "
                f"{len(self.classes)} classes; fetch it again."
            )
        return source_from_arrays(images[:, None], labels.astype(np.int64))

    def prepare_data(self) -> None:
        """With `download=true`, fetch the files unless they are there.

        Raises:
            DataError: If they cannot be fetched.
        """
        if not self.config.download or self._complete():
            return
        root = self.root()
        try:
            self._torchvision_class()(root=str(root), download=True)
        except (OSError, RuntimeError) as error:
            reason = str(error).strip().splitlines()[-1] if str(error).strip() else repr(error)
            raise DataError(
                f"{self.title}: download=true, but fetching the files into {self._folder()} "
                f"failed ({reason}); put the IDX files there by hand and set download=false."
            ) from error

    def _torchvision_class(self) -> Any:
        # Only downloads need it, and importing torchvision takes a second.
        from torchvision import datasets

        return getattr(datasets, type(self).__name__)

    def _folder(self) -> Path:
        return self.root() / type(self).__name__ / "raw"

    def _candidates(self, name: str) -> list[Path]:
        return [self._folder() / name, self._folder() / f"{name}.gz"]

    def _complete(self) -> bool:
        names = [
            f"{stem}-{kind}-ubyte"
            for stem in _STEMS.values()
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


class MNIST(_IDXDataModule):
    """Handwritten digits: 60,000 + 10,000 grey images, 28×28, 10 classes."""

    class Config(_IDXConfig):
        """Config of MNIST."""

    classes: ClassVar[tuple[str, ...]] = tuple(str(digit) for digit in range(10))

    @property
    def title(self) -> str:
        """The data set's name."""
        return "mnist"


class FashionMNIST(_IDXDataModule):
    """Zalando's articles of clothing: 60,000 + 10,000 grey images, 28×28, 10 classes."""

    class Config(_IDXConfig):
        """Config of Fashion-MNIST."""

    classes: ClassVar[tuple[str, ...]] = (
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    )

    @property
    def title(self) -> str:
        """The data set's name."""
        return "fashion_mnist"
