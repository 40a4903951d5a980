"""Base of the data sets at a user's `data.path`."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import Field, model_validator

from coterie.config.given_path import given_path
from coterie.contract.data import Indices
from coterie.datamodules.base import DataConfig, DataSet
from coterie.datamodules.decoding import Form, Mode
from coterie.datamodules.partitions import Labels
from coterie.datamodules.remote import is_remote, remote_path
from coterie.datamodules.resize import Fit
from coterie.datamodules.source import OnError
from coterie.errors import DataError

_UNKNOWN = (None, "", -1, "-1")


class PathConfig(DataConfig):
    """Config keys of a user's data."""

    path: str = Field(min_length=1)
    """Path of the data: a file or folder, or a URL of an object store such as s3://bucket/folder."""


class PicturesConfig(PathConfig):
    """Config keys of a user's pictures."""

    mode: Mode = "RGB"
    """Three colour channels (RGB) or one grey channel (L); other pictures are converted, and
    transparent pixels become black."""
    fit: Fit | None = None
    """How a picture of another shape comes to `size`: squash scales its sides apart (the default),
    crop cuts off what juts out, letterbox fills the rest with black."""
    levels: Annotated[tuple[float, float], Field(strict=False)] | None = None
    """Grey levels that become black and white: of pictures of more than 8 bits, such as [0, 4095],
    and of DICOM in its units, such as [-160, 240]; by default what the file states."""
    on_error: OnError = "refuse"
    """What to do about pictures that cannot be read: refuse names them and ends, skip leaves them
    out and lists them in skipped.csv."""
    stream: bool = False
    """Whether to decode pictures on demand and keep none, for data larger than memory. It needs
    `size`."""

    @property
    def form(self) -> Form:
        """What pictures are brought to."""
        return Form(mode=self.mode, size=self.size, fit=self.fit, levels=self.levels)

    @model_validator(mode="after")
    def _check_form(self) -> "PicturesConfig":
        if self.fit is not None and self.size is None:
            raise ValueError("fit has no effect without size; set size, or leave fit out")
        if self.levels is not None and not self.levels[0] < self.levels[1]:
            raise ValueError("levels go from black to white; give the lower one first")
        return self


PathConfigT = TypeVar("PathConfigT", bound=PathConfig)


class OwnData(DataSet[PathConfigT]):
    """Base of the data sets in one file or folder, without a test set by default."""

    @property
    def path(self) -> Path:
        """The file or folder."""
        path = self.config.path
        return remote_path(path) if is_remote(path) else given_path("data.path", path)

    @property
    def title(self) -> str:
        """Name of the file or folder."""
        path = self.path
        return path.stem if path.is_file() or not isinstance(path, Path) else path.resolve().name

    def has_test(self) -> bool:
        """Whether there is a test set."""
        return False

    @cached_property
    def train_classes(self) -> tuple[str, ...]:
        """The names of the training half's classes, by which a test half is numbered too."""
        return self.open_half("train").classes

    @property
    def on_error(self) -> OnError:
        """What to do about pictures that cannot be read."""
        config = self.config
        return config.on_error if isinstance(config, PicturesConfig) else "refuse"

    @property
    def streams(self) -> bool:
        """Whether samples are read when they are needed.

        Raises:
            DataError: If pictures are to be streamed without a size to bring them to.
        """
        config = self.config
        if not (isinstance(config, PicturesConfig) and config.stream):
            return False
        if config.size is None:
            raise DataError(
                "data.stream=true: pictures are looked at one by one; set data.size to resize them."
            )
        return True


def number_classes(
    values: Sequence[Any], name: str, classes: tuple[str, ...] | None = None
) -> tuple[Labels, tuple[str, ...]]:
    """Number labels by the rank of their values; None, empty text, -1 and "-1" are unknown.

    Args:
        values: Text or integers (n,).
        name: Their name in errors.
        classes: Names of the classes, if known, for a test set.

    Returns:
        int64 (n,), -1 where unknown, and the names of the classes.

    Raises:
        DataError: If a label is neither text nor integer, below -1, or not among `classes`.
    """
    kinds = {type(value) for value in values if value is not None}
    if kinds not in ({int}, {str}, set()):
        found = " and ".join(sorted(kind.__name__ for kind in kinds))
        raise DataError(f"{name} holds {found} values; labels have to be all integers or all text.")
    known = sorted({value for value in values if value not in _UNKNOWN})
    if known and kinds == {int} and known[0] < 0:
        raise DataError(f"{name} holds {known[0]}; labels count from 0, and -1 stands for unknown.")
    names = tuple(map(str, known)) if classes is None else classes
    new = [value for value in known if str(value) not in names]
    if new:
        raise DataError(f"{name} holds {new[0]}, which no training sample has; take it out.")
    numbers = {value: names.index(str(value)) for value in known}
    return np.array([numbers.get(value, -1) for value in values], dtype=np.int64), names


def number_owners(values: Sequence[Any], name: str) -> tuple[Indices, tuple[str, ...]]:
    """Number clients by the rank of their names.

    Args:
        values: Text or integers (n,).
        name: Their name in errors.

    Returns:
        int64 (n,) and the names of the clients.

    Raises:
        DataError: If a sample's client is missing, or neither text nor integer.
    """
    owners, names = number_classes(values, name)
    if (owners < 0).any():
        row = int(np.flatnonzero(owners < 0)[0])
        raise DataError(f"{name} names no client in row {row}; give every sample one.")
    return owners, names
