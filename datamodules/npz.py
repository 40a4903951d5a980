"""A user's arrays in a NumPy .npz or .npy file: images, or feature vectors."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.datamodules.array_files import DAMAGE, header_of, open_array
from coterie.datamodules.base import Half
from coterie.datamodules.csv_files import SUFFIXES
from coterie.datamodules.custom_data import (
    BlackAndWhite,
    CustomData,
    PathConfig,
    number_classes,
    number_owners,
)
from coterie.datamodules.dicom import Levels
from coterie.datamodules.grey_levels import eight_bits
from coterie.datamodules.picture_files import UnfitPictureError
from coterie.datamodules.remote import opened
from coterie.datamodules.source import Samples, Source
from coterie.datamodules.stored_rows import StoredRows
from coterie.errors import DataError, listed, printable, reason

_logger = logging.getLogger(__name__)

_USUAL_CHANNELS = (1, 3)
_ONE = "samples"
"""The name of the array of an .npy file."""
_PYTORCH = (".pt", ".pth")
_BLOCK = 2**20
_PLAIN = {"samples": ("samples", "x"), "labels": ("labels", "y"), "clients": ("clients",)}
USUAL = {
    "samples": (*_PLAIN["samples"], "X", "x_train", "X_train", "train_images", "images", "data"),
    "labels": (*_PLAIN["labels"], "label", "Y", "y_train", "train_labels", "targets", "target"),
    "clients": (*_PLAIN["clients"], "client"),
    "test_samples": ("x_test", "X_test", "test_images"),
    "test_labels": ("y_test", "test_labels"),
}
"""Default names of arrays: Coterie's, then those of Keras, MedMNIST, scikit-learn and others."""


class NPZ(CustomData["NPZ.Config"]):
    """Samples in an .npz file, with optional labels and clients, or in an .npy file.

    Images are (n, height, width), (n, height, width, channels) or (n, channels, height, width); the
    axis of channels has 1 or 3, and the last one if both qualify, or else is the shortest. They are
    uint8, booleans, or decimal numbers in 0..1; of other numbers `levels` says what is black and
    white. Feature vectors are numbers (n, features). Labels and clients are integers or text (n,);
    the label -1 is unknown.
    """

    class Config(PathConfig):
        """Config of an .npz file."""

        samples: str | None = None
        """Array of samples; by default `samples`, `x`, or another usual name, which is reported."""
        labels: str | None = None
        """Array of labels; by default `labels`, `y`, or another usual name, if it exists."""
        clients: str | None = None
        """Array of clients; by default `clients`, if it exists."""
        levels: BlackAndWhite | None = None
        """Numbers that become black and white in images that are not of 8 bits."""
        test_samples: str | None = None
        """Array of held-out samples; by default that beside `x_train` or `train_images`."""
        test_labels: str | None = None
        """Array of their labels; by default that beside `y_train` or `train_labels`."""

    def has_test(self) -> bool:
        """Return whether there is an array of held-out samples."""
        return self._find("test_samples") is not None

    def open_half(self, half: Half) -> Source:
        """Read the arrays of the training or test set."""
        train = half == "train"
        if train:
            self._tell_names()
        source = self._samples("samples" if train else "test_samples")
        values, name = self._values("labels", "samples")
        if values is None:
            if self.config.test_labels is not None:
                raise DataError(
                    f"data.test_labels={self.config.test_labels}: the training samples have no "
                    "labels, which give the classes their numbers; name them as data.labels, or "
                    "leave data.test_labels out."
                )
            return self._with_owners(source) if train else source
        labels, classes = number_classes(values, name)
        if not train:
            values, name = self._values("test_labels", "test_samples")
            if values is None:
                return source
            labels, _ = number_classes(values, name, classes)
        source = replace(source, labels=labels, classes=classes)
        return self._with_owners(source) if train else source

    def _with_owners(self, source: Source) -> Source:
        values, name = self._values("clients", "samples")
        if values is None:
            return source
        owners, names = number_owners(values, name)
        return replace(source, owners=owners, owner_names=names)

    def _samples(self, key: str) -> Source:
        name = self._find_samples(key)
        array, where = self._read(name), f"{self.path}, array {name},"
        if 0 in array.shape[1:]:
            raise DataError(f"{where} has shape {array.shape}, and so no values; give some.")
        levels = self.config.levels
        as_samples(array[:0] if array.ndim else np.asarray(array), where, levels, array.shape)
        _check_range(array, where, levels)
        return Source(count=len(array), read=lambda rows: as_samples(array[rows], where, levels))

    def _values(self, key: str, samples: str) -> tuple[list[Any] | None, str]:
        """Return an array (n,) or (n, 1) as a list, if it exists, and its name in errors.

        Args:
            key: The key of the config that names it.
            samples: The key of its samples, each of which has to have an entry.
        """
        found = self._find(key)
        if found is None:
            return None, ""
        name = f"{self.path}, array {found},"
        shape, dtype = self._header(found)
        if len(shape) != 1 and (len(shape) != 2 or shape[1] != 1):
            raise DataError(
                f"{name} has shape {shape}; give a whole number or a text for each sample, such as "
                "the argmax of one-hot labels."
            )
        if dtype.kind in "mM":
            raise DataError(f"{name} holds times; give whole numbers or text.")
        of, _ = self._header(self._find_samples(samples))
        if of[:1] != shape[:1]:
            raise DataError(
                f"{name} has {shape[0]} entries for {of[0] if of else 1} samples; give one for "
                "each."
            )
        values: list[Any] = np.asarray(self._read(found)).reshape(-1).tolist()
        if dtype.kind == "S":
            values = [value.decode("utf-8", "backslashreplace") for value in values]
        return values, name

    def _find(self, key: str) -> str | None:
        """Return the array's name: from the config, or else the first default name that exists."""
        given: str | None = getattr(self.config, key)
        names = self._names()
        if given is not None and given not in names:
            raise DataError(f"data.{key}={given}: {self.path} has {self._content()}; name one.")
        if given is not None:
            return given
        if key == "samples" and len(names) == 1:
            return names[0]
        named = self.config.samples is not None  # then nothing else is of the usual names
        found = next((n for n in (_PLAIN if named else USUAL).get(key, ()) if n in names), None)
        if key.startswith("test_") and found is not None:  # of the same making as what is trained
            of = self._find(key.removeprefix("test_"))
            return found if of is not None and "train" in of else None
        return found

    def _tell_names(self) -> None:
        """Report which arrays are used, where that is not obvious, and which are not."""
        used = {key: name for key in USUAL if (name := self._find(key)) is not None}
        guessed = {
            key: name
            for key, name in used.items()
            if getattr(self.config, key) is None and name not in (*_PLAIN.get(key, ()), _ONE)
        }
        left = [name for name in self._names() if name not in used.values()]
        if guessed:
            shown = listed([f"data.{key}={printable(name)}" for key, name in guessed.items()])
            _logger.warning("%s: its arrays are taken as %s.", self.path, shown)
        if left:
            _logger.warning(
                "%s: the arrays %s are not used; data.samples, data.labels and data.clients name "
                "those that are.",
                *(self.path, listed([printable(name) for name in left])),
            )

    def _find_samples(self, key: str) -> str:
        name = self._find(key)
        if name is None:
            raise DataError(
                f"data.path={self.path}: it has no array samples or x, but {self._content()}; name "
                "the one to use as data.samples."
            )
        return name

    def _content(self) -> str:
        shown = (name if name.isprintable() else ascii(name) for name in self._names())
        return f"the arrays {', '.join(shown)}" if self._names() else "no arrays"

    def _read(self, name: str) -> NDArray[Any] | StoredRows:
        self._header(name)
        try:
            return open_array(self.path, name)
        except DAMAGE as error:
            raise self._unreadable(error) from error

    def _header(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return an array's shape and dtype, without reading its values."""
        try:
            return header_of(self.path, name)
        except DAMAGE as error:
            if "allow_pickle" not in str(error):
                raise self._unreadable(error) from error
            raise DataError(
                f"{self.path}, array {name}, holds Python objects, which are not read because they "
                "can run code; save numbers or text."
            ) from error

    def _names(self) -> tuple[str, ...]:
        if not isinstance(self.path, Path):
            raise DataError(f"data.path={self.path}: arrays are read from this machine; fetch it.")
        if not self.path.is_file():
            raise DataError(f"data.path={self.path}: there is no such file; give an .npz file.")
        try:
            opened(self.path).close()
            if self.path.suffix == ".npy":
                return (_ONE,)
            if self.path.suffix.lower() in _PYTORCH:
                raise ValueError("it is PyTorch's")
            file: Any = np.load(self.path, allow_pickle=False)
        except DAMAGE as error:
            raise self._unreadable(error) from error
        if not hasattr(file, "files"):
            raise DataError(f"data.path={self.path}: it holds one array; rename it to .npy.")
        with file:
            return tuple(file.files)

    def _unreadable(self, error: Exception) -> DataError:
        if self.path.suffix.lower() in _PYTORCH:
            return DataError(
                f"data.path={self.path}: tensors of PyTorch are not read; save them as arrays, by "
                "numpy.savez(FILE, samples=…, labels=…)."
            )
        if self.path.suffix.lower() in (*SUFFIXES, ".parquet"):
            return DataError(
                f"data.path={self.path}: a table is read by data=manifest; choose that."
            )
        # NumPy takes a file of another kind for a pickle, and tells how to load it.
        why = "it is not a file of arrays" if "pickle" in reason(error) else reason(error)
        return DataError(f"data.path={self.path}: it cannot be read ({why}); save it again.")


def as_samples(
    array: NDArray[Any],
    name: str,
    levels: Levels | None = None,
    shape: tuple[int, ...] | None = None,
) -> Samples:
    """Convert to uint8 images (n, channels, height, width) or float32 vectors (n, features).

    Args:
        array: In a form that `NPZ` accepts.
        name: Its name in errors.
        levels: Numbers that become black and white in images that are not uint8.
        shape: Its shape in errors, where it is a part.

    Raises:
        DataError: If it is neither.
    """
    if array.ndim == 2 and array.dtype.kind in "fiu":
        with np.errstate(over="ignore"):  # overflow to infinity is refused later
            return array.astype(np.float32)
    if array.ndim in (3, 4) and array.dtype.kind in "fiub":
        axis = _channel_axis(array.shape)
        if axis is not None:
            try:
                pixels = array if array.dtype == np.uint8 else _eight_bits(array, levels)
            except UnfitPictureError as error:
                raise DataError(f"{name} {error}.") from error
            return pixels[:, None] if axis == 0 else np.moveaxis(pixels, axis, 1)
    raise DataError(
        f"{name} has type {array.dtype} and shape {shape or array.shape}; save images as uint8 (n, "
        "height, width), with channels first or last if there are several, or feature vectors "
        "as numbers (n, features)."
    )


def _channel_axis(shape: tuple[int, ...]) -> int | None:
    """Return the axis of channels, 0 if there is none; None if it is ambiguous."""
    if len(shape) == 3:
        return 0
    before, height, width = shape[1:]
    if width in _USUAL_CHANNELS:
        return 3
    if before in _USUAL_CHANNELS:
        return 1
    if width < min(before, height):
        return 3
    return 1 if before < min(height, width) else None


def _eight_bits(array: NDArray[Any], levels: Levels | None) -> NDArray[np.uint8]:
    """Convert images of other dtypes to 8 bits; integers need levels, as their bits are unknown."""
    if levels is None and array.dtype.kind in "iu" and array.size:
        low, high = array.min(), array.max()
        raise UnfitPictureError(
            f"holds images of {array.dtype} in {low}..{high}",
            f"set data.levels to what is black and white, such as [{low},{high}]",
        )
    return eight_bits(array, 8 * array.dtype.itemsize, levels)[0]


def _check_range(array: NDArray[Any] | StoredRows, name: str, levels: Levels | None) -> None:
    """Check the range of images that are not of 8 bits before they are used."""
    if array.ndim < 3 or array.dtype.kind not in "fiu" or array.dtype == np.uint8:
        return
    if levels is not None or not array.size:
        return
    rows = max(1, _BLOCK // max(1, array[0].size))
    parts = [array[start : start + rows] for start in range(0, len(array), rows)]
    ends = np.array([[part.min(), part.max()] for part in parts])  # NaN stays NaN
    as_samples(np.array([ends.min(), ends.max()]).reshape(1, 1, 2).astype(array.dtype), name)
