"""Base of the data sets at a user's `data.path`."""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from coterie.config.given_path import given_path
from coterie.contract.data import Indices
from coterie.datamodules.base import DataConfig, DataSet
from coterie.datamodules.decoding import Ground, Mode, PixelFormat
from coterie.datamodules.dicom import Levels
from coterie.datamodules.partitions import Labels
from coterie.datamodules.picture_files import MAX_PIXELS
from coterie.datamodules.remote import is_remote, remote_path
from coterie.datamodules.resize import Fit
from coterie.datamodules.site_levels import with_site_levels
from coterie.datamodules.source import OnError, Source
from coterie.datamodules.spelling import spelled, tell_if_merged
from coterie.errors import DataError

_UNKNOWN = (None, "", -1, "-1", "nan", "NaN", "<NA>")


def _rising(levels: tuple[float, float]) -> tuple[float, float]:
    if not levels[0] < levels[1]:
        raise ValueError("levels go from black to white; give the lower one first")
    return levels


def _widening(range_: tuple[float, float]) -> tuple[float, float]:
    if not range_[0] < range_[1]:
        raise ValueError("a range goes from its lower to its upper end; give the lower one first")
    return range_


Range = Annotated[tuple[float, float], Field(strict=False), AfterValidator(_widening)]
"""Numbers that become 0 and 1."""


BlackAndWhite = Annotated[tuple[float, float], Field(strict=False), AfterValidator(_rising)]
"""Levels that become black and white."""


class PathConfig(DataConfig):
    """Config keys of a user's data."""

    path: str = Field(min_length=1)
    """Path of the data: a file or folder, or a URL of an object store such as
    s3://bucket/folder."""


class PicturesConfig(PathConfig):
    """Config keys of a user's pictures."""

    mode: Mode = "RGB"
    """Three colour channels (RGB) or one grey channel (L), to which other pictures are converted;
    `all` keeps every channel. Pictures of two channels, or of five and more, always keep them."""
    background: Ground | None = None
    """What transparent pixels become, black or white; by default white in pictures that are mostly
    transparent, and black in others."""
    exif: bool = True
    """Whether to turn pictures as their EXIF orientation says, as viewers do."""
    frame: int | None = Field(default=None, ge=0)
    """Which frame to take of pictures with several, from 0; by default they are refused."""
    max_pixels: int = Field(default=MAX_PIXELS, ge=1)
    """Maximum number of a picture's pixels; larger pictures are refused. Pixels of more than four
    bytes, such as those of many channels, count as several."""
    fit: Fit | None = None
    """How a picture of another shape is brought to `size`: squash stretches it (the default), crop
    cuts off what is outside, letterbox fills the rest with black."""
    levels: BlackAndWhite | Literal["auto"] | Mapping[str, BlackAndWhite] | None = None
    """Grey levels that become black and white: for pictures of more than 8 bits, such as [0, 4095],
    and for DICOM in its units, such as [-160, 240]; by default what the file states. `auto` finds
    the bits that each client uses, and {site_a: [0, 4095], …} sets them by client."""
    on_error: OnError = "refuse"
    """What to do about pictures that cannot be read, and about rows with empty cells of features:
    refuse lists them and ends, skip leaves them out and lists them in skipped.csv."""
    stream: bool = False
    """Whether to decode pictures on demand and keep none, for data larger than memory. It needs
    `size`."""

    @property
    def pixel_format(self) -> PixelFormat:
        """The form to which pictures are brought."""
        return PixelFormat(
            mode=self.mode,
            size=self.size,
            fit=self.fit,
            levels=self.levels if isinstance(self.levels, tuple) else None,
            background=self.background,
            exif=self.exif,
            frame=self.frame,
            max_pixels=self.max_pixels,
        )

    @model_validator(mode="after")
    def _check_pixel_format(self) -> "PicturesConfig":
        if self.fit is not None and self.size is None:
            raise ValueError("fit has no effect without size; set size, or leave fit out")
        return self


PathConfigT = TypeVar("PathConfigT", bound=PathConfig)


class CustomData(DataSet[PathConfigT]):
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
        """Return whether there is a test set."""
        return False

    @cached_property
    def train_classes(self) -> tuple[str, ...]:
        """The names of the training classes, which number the test classes too."""
        return self.open_half("train").classes

    @property
    def on_error(self) -> OnError:
        """What to do about samples that cannot be read."""
        config = self.config
        return config.on_error if isinstance(config, PicturesConfig) else "refuse"

    def as_shown(self, source: Source) -> Source:
        """Return the source with the levels of each site, if the config asks for levels by site."""
        config = self.config
        if not (isinstance(config, PicturesConfig) and isinstance(config.levels, str | Mapping)):
            return source
        given = config.levels if isinstance(config.levels, Mapping) else None
        return with_site_levels(source, given, self._site_levels)

    @cached_property
    def _site_levels(self) -> dict[str, Levels | None]:
        """The levels that were measured for each site, to be used for the test set too."""
        return {}

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
                "data.stream=true: pictures are read one by one and may differ in size; set "
                "data.size to resize them."
            )
        return True


def number_classes(
    values: Sequence[Any], name: str, classes: tuple[str, ...] | None = None
) -> tuple[Labels, tuple[str, ...]]:
    """Enumerate labels by the order of their values.

    None, empty text, and -1 and NaN, as text too, are unknown. Whole numbers may be stored as
    decimals, as pandas does where one is missing; booleans are the classes False and True. Blanks
    around text do not count, nor does how its accents are stored.

    Args:
        values: Text, numbers or booleans (n,).
        name: Their name in errors.
        classes: Names of the classes, if known, for a test set.

    Returns:
        int64 (n,), -1 where unknown, and the names of the classes.

    Raises:
        DataError: If a label is of another kind, a fraction, below -1, or not among `classes`.
    """
    labels = _alike(values, name)
    known = sorted({value for value in labels if value not in _UNKNOWN})
    if known and isinstance(known[0], int) and known[0] < 0:
        raise DataError(f"{name} holds {known[0]}; labels count from 0, and -1 stands for unknown.")
    names = tuple(map(str, known)) if classes is None else classes
    new = [value for value in known if str(value) not in names]
    if new:
        raise DataError(f"{name} holds {new[0]}, which no training sample has; take it out.")
    numbers = {value: names.index(str(value)) for value in known}
    return np.array([numbers.get(value, -1) for value in labels], dtype=np.int64), names


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _alike(values: Sequence[Any], name: str) -> list[Any]:
    """Return labels as all integers or all text; None where they are missing."""
    found = [None if value is None or _is_nan(value) else value for value in values]
    kinds = {type(value) for value in found if value is not None}
    if kinds <= {int}:
        return found
    if kinds <= {int, float}:
        for value in found:
            if value is not None and (math.isinf(value) or value != int(value)):
                raise DataError(
                    f"{name} holds {value:g}, a fraction; give classes as whole numbers or text, "
                    "or name the right column."
                )
        return [None if value is None else int(value) for value in found]
    if not kinds <= {int, float, bool, str}:
        kind = sorted(kind.__name__ for kind in kinds - {int, float, bool, str})[0]
        raise DataError(
            f"{name} holds values of the type {kind}; labels and clients are whole numbers, "
            "booleans or text, so name the right column, or write them as such."
        )
    texts = [None if value is None else str(value) for value in found]
    told = [None if text is None else spelled(text.strip()) for text in texts]
    pairs = [(a, b) for a, b in zip(texts, told, strict=True) if a is not None and b is not None]
    tell_if_merged([a for a, _ in pairs], [b for _, b in pairs], f"{name} some labels:")
    return told


def number_owners(values: Sequence[Any], name: str) -> tuple[Indices, tuple[str, ...]]:
    """Enumerate clients by the order of their names.

    `values` are text or integers (n,).

    Returns:
        int64 (n,) and the names of the clients.

    Raises:
        DataError: If a sample's client is missing, or of another kind; see `number_classes`.
    """
    owners, names = number_classes(values, name)
    if (owners < 0).any():
        row = int(np.flatnonzero(owners < 0)[0])
        raise DataError(f"{name} names no client in row {row}; give every sample one.")
    return owners, names
