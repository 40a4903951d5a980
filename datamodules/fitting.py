"""Fits samples to a model's input: size and mode of images, width of vectors."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coterie.config.explain import show
from coterie.config.loading import load_component
from coterie.datamodules.custom_data import PicturesConfig
from coterie.datamodules.decoding import Levelled, Picture, PixelFormat, UnreadablePictureError
from coterie.datamodules.dicom import Levels
from coterie.datamodules.image_files import DecodedPictures, Tally, decode_images
from coterie.datamodules.npz import as_samples
from coterie.datamodules.picture_files import UnfitPictureError
from coterie.datamodules.resize import resize_images
from coterie.datamodules.site_levels import WHOLE, measured_levels, tell_levels
from coterie.errors import ConfigError, DataError

_LUMA = np.array([19595, 38470, 7471], dtype=np.uint32)
"""ITU-R 601 weights of red, green and blue in 1/65536, as in Pillow's conversion to "L"."""

_AS_TRAINED = ("fit", "levels", "background", "exif", "frame", "max_pixels")
"""Keys of a run's data that say how pictures were prepared."""

_AS_THE_RUNS = "convert it to the form of the run's pictures, since predict has no keys for that"

_logger = logging.getLogger(__name__)


@dataclass
class Fitting:
    """A model's input, and counts of the conversions of samples so far.

    Attributes:
        shape: Shape of a sample: (channels, height, width) or (features,).
        images: Whether samples are uint8 images rather than float vectors.
        mode: Mode of the images; None unless they have one or three channels.
        pixel_format: How the run brought its pictures into form; size and mode are the model's.
        measures: Whether it had levels for each site, so that those of a new one are measured.
        by_folder: Whether its sites were folders, so that those in a folder of pictures are sites.
    """

    shape: tuple[int, ...]
    images: bool
    mode: Literal["L", "RGB"] | None
    pixel_format: PixelFormat = field(default_factory=PixelFormat)
    measures: bool = False
    by_folder: bool = False
    _tally: Tally = field(default_factory=Tally, repr=False)
    _levels: dict[str, Levels | None] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Refuse a shape to which no sample can be brought.

        Raises:
            DataError: If so.
        """
        if len(self.shape) != (3 if self.images else 1):
            kind = "pictures" if self.images else "vectors"
            raise DataError(
                f"The model's description gives {kind} the impossible shape {self.shape}; "
                "copy the model again."
            )

    def sites_in(self, folder: Path, files: Sequence[Path]) -> tuple[str, ...]:
        """Return the site of each file of a folder: its first folder if sites were folders."""
        inside = (file.relative_to(folder).parts for file in files)
        return tuple(p[0] if self.by_folder and len(p) > 1 else WHOLE for p in inside)

    def measure_sites(self, files: Sequence[Path], sites: Sequence[str]) -> None:
        """Measure the levels of each site's pictures, for `levelled`."""
        for site in dict.fromkeys(sites):
            own = [file for file, its in zip(files, sites, strict=True) if its == site]
            names = [str(file) for file in own]
            self._levels[site] = measured_levels(own, names, self.pixel_format, site)
        self.measures = False
        tell_levels(self._levels)

    def levelled(self, files: Sequence[Path], sites: Sequence[str]) -> Sequence[Picture]:
        """Return the files with the levels of their sites, if these were measured."""
        if not self._levels:
            return files
        return [Levelled(f, self._levels.get(s)) for f, s in zip(files, sites, strict=True)]

    def readable(self, pictures: Sequence[Picture], names: Sequence[str]) -> DecodedPictures:
        """Decode pictures to the model's size and mode, without those that cannot be read.

        Raises:
            DataError: If the model takes no pictures.
        """
        if not self.images:
            raise DataError(f"{names[0]}: a picture, but {self._wanted}; give it such an array.")
        if self.measures:
            raise DataError(
                f"{names[0]}: the run had levels for each site (data.levels), which are measured "
                "in a folder of pictures or a table of paths; give such a folder or table."
            )
        wanted = self.shape[1:]
        pixel_format = replace(self._form, size=(wanted[0], wanted[1]))
        decoded = decode_images(pictures, names, pixel_format)
        for row, error in decoded.bad.items():
            if isinstance(unfit := error.__cause__, UnfitPictureError):
                decoded.bad[row] = UnreadablePictureError(error.name, unfit.what, _AS_THE_RUNS)
        if len(decoded.images) and decoded.images.shape[1:] != self.shape:
            raise DataError(
                f"{names[0]}: it has {decoded.images.shape[1]} channels, but {self._wanted}; give "
                "such pictures."
            )
        self._tally.merge(decoded.tally)
        return decoded

    def array(self, array: NDArray[Any], name: str) -> NDArray[np.generic]:
        """Convert an array to the model's shape and dtype.

        Images may be (n, height, width), (n, channels, height, width) or (n, height, width,
        channels); other sizes are resized, grey and RGB are converted to each other.

        Args:
            array: uint8 images, or real vectors (n, features).
            name: Its name in errors.

        Raises:
            DataError: If it cannot be converted, or a value is not finite.
        """
        return self._images(array, name) if self.images else self._vectors(array, name)

    def warn(self) -> None:
        """Warn once about the conversions, after the last sample."""
        tally = self._tally
        if tally.resized:
            size = "×".join(map(str, self.shape[1:]))
            _logger.warning("%d of %d images were resized to %s.", tally.resized, tally.count, size)
        tally.warn(self._form)

    @property
    def _form(self) -> PixelFormat:
        """How pictures come to the model's mode; a default fit needs no warning."""
        return replace(
            self.pixel_format, mode=self.mode or "all", fit=self.pixel_format.fit or "squash"
        )

    @property
    def _wanted(self) -> str:
        if not self.images:
            return f"the model takes vectors of {self.shape[0]} features"
        return f"the model takes uint8 images of shape {self.shape}"

    def _vectors(self, array: NDArray[Any], name: str) -> NDArray[np.float32]:
        real = array.dtype.kind in "fiu"
        if not real or array.ndim != 2 or array.shape[1:] != self.shape:
            raise DataError(
                f"{name}: it has shape {array.shape} and type {array.dtype}, but {self._wanted}; "
                "give (n, features) of real numbers."
            )
        vectors = array.astype(np.float32)
        if not np.isfinite(vectors).all():
            raise DataError(f"{name}: a value is not finite; fill or drop such rows.")
        self._tally.count += len(array)
        return vectors

    def _images(self, array: NDArray[Any], name: str) -> NDArray[np.uint8]:
        channels, height, width = self.shape
        unfit = DataError(
            f"{name}: it has shape {array.shape} and type {array.dtype}, but {self._wanted}; give "
            "(n, height, width) or (n, channels, height, width) in 0..255."
        )
        if array.dtype.kind not in "fiub" or array.ndim not in {3, 4} or 0 in array.shape:
            raise unfit
        whole = array.shape[1:] == self.shape and array.dtype == np.uint8
        images: NDArray[Any] = array if whole else self._eight_bits(array, name)
        given = images.shape[1]
        if given != channels and {given, channels} != {1, 3}:
            raise unfit
        if images.shape[2:] != (height, width):
            images = resize_images(images, (height, width))
            self._tally.resized += len(images)
        if given != channels:
            images = _grey(images) if channels == 1 else np.repeat(images, 3, axis=1)
            self._tally.converted["RGB" if channels == 1 else "L"] += len(images)
        self._tally.count += len(images)
        return np.ascontiguousarray(images)

    def _eight_bits(self, array: NDArray[Any], name: str) -> NDArray[Any]:
        """Convert images of other dtypes to 8 bits as the run did."""
        try:
            return as_samples(array, name, self.pixel_format.levels)
        except DataError as error:
            if isinstance(unfit := error.__cause__, UnfitPictureError):
                raise DataError(f"{name}: it {unfit.what}; {_AS_THE_RUNS}.") from error
            raise


def as_trained(data: object) -> dict[str, Any]:
    """Return how a run prepared its pictures, as keys of `Fitting`.

    Args:
        data: The section `data` of its stored config; of node-local data that of their source is
            taken.

    Raises:
        ConfigError: If it is no section, or a value is none that pictures can be prepared by.
    """
    keys = data.get("source", data) if isinstance(data, Mapping) else data
    if not isinstance(keys, Mapping):
        raise ConfigError(f"data={show(keys)}: it is not a data section; copy the model again.")
    own = {key: keys[key] for key in _AS_TRAINED if keys.get(key) is not None}
    # Any path and size: `fit` is refused without a size.
    config = load_component(PicturesConfig, {**own, "path": ".", "size": 1}, "data.")
    return {
        "pixel_format": replace(config.pixel_format, size=None, mode=PixelFormat().mode),
        "measures": isinstance(config.levels, str | Mapping),
        "by_folder": str(keys.get("target", "")).endswith(":ClientFolders"),
    }


def _grey(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Convert RGB (n, 3, height, width) to grey (n, 1, height, width), with Pillow's rounding."""
    levels = np.tensordot(images.astype(np.uint32), _LUMA, axes=(1, 0))
    return np.asarray((levels + 0x8000) >> 16, dtype=np.uint8)[:, None]
