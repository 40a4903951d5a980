"""Sources: samples that are read on demand, with their labels and owners."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coterie.contract.content import digest
from coterie.contract.data import Indices, Unreadable
from coterie.contract.samples import StreamedSamples
from coterie.datamodules.decoding import Picture, PixelFormat, UnreadablePictureError
from coterie.datamodules.image_files import (
    decode_images,
    look_through,
    picture_digest,
    read_images,
    refuse,
    tell_skipped,
)
from coterie.datamodules.partitions import Labels, stratified_subset
from coterie.datamodules.spelling import inside
from coterie.datamodules.stored import Chained, Picked
from coterie.errors import DataError

Images = NDArray[np.uint8]
Samples = NDArray[Any]
"""uint8 images (n, channels, height, width) or float32 feature vectors (n, features)."""
OnError = Literal["refuse", "skip"]
"""What to do about pictures that cannot be read, and rows with empty cells: refuse the data and
name them, or leave them out and list them."""

_SUBSET_SEED = 0
_MANY = 20_000
"""Number of pictures from which checking them is announced."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Source:
    """Samples that are read on demand, so that small subsets are cheap.

    Attributes:
        count: Number of samples.
        read: Maps sorted rows, int64 (m,), to uint8 images (m, channels, height, width) or float32
            vectors (m, features).
        labels: int64 classes (n,), -1 where unknown; or None.
        classes: Names of the classes, if the files hold them.
        owners: The client of each sample, int64 (n,), or None.
        owner_names: Names of these clients.
        pictures: Files of encoded pictures, or their bytes, if the samples are such.
        names: Each picture's name in errors.
        folder: The folder below which samples have their own names; "" leaves names as they are.
        pixel_format: What pictures are brought to.
        skipped: Pictures and rows that were left out, because they cannot be read.
        features: Names of a vector's features, if known.
        contents: A digest of all pictures, once they have been looked through; else "".
        digests: That of each picture (n, 16), once they have been looked through; else None.
    """

    count: int
    read: Callable[[Indices], Samples]
    labels: Labels | None = None
    classes: tuple[str, ...] = ()
    owners: Indices | None = None
    owner_names: tuple[str, ...] = ()
    pictures: Sequence[Picture] | None = None
    names: Sequence[str] = ()
    folder: str = ""
    pixel_format: PixelFormat = field(default_factory=PixelFormat)
    skipped: tuple[Unreadable, ...] = ()
    features: tuple[str, ...] = ()
    contents: str = ""
    digests: NDArray[np.uint8] | None = None

    @property
    def own_names(self) -> Sequence[str]:
        """The samples' names; those of files are paths inside the folder."""
        if not self.folder:
            return self.names
        return [inside(self.folder, name) for name in self.names]

    def subset(self, limit: int | None) -> "Source":
        """Draw up to `limit` samples with the classes' proportions, in order; all if None."""
        if limit is None or limit >= self.count:
            return self
        labels = np.zeros(self.count, np.int64) if self.labels is None else self.labels
        return self.rows(stratified_subset(labels, limit, _SUBSET_SEED))

    def rows(self, chosen: Indices) -> "Source":
        """Select rows, which must be ascending."""
        return replace(
            self,
            count=len(chosen),
            read=lambda rows: self.read(chosen[rows]),
            labels=None if self.labels is None else self.labels[chosen],
            owners=None if self.owners is None else self.owners[chosen],
            pictures=None if self.pictures is None else Picked(self.pictures, chosen),
            names=Picked(self.names, chosen) if self.names else (),
            contents="",
            digests=None if self.digests is None else self.digests[chosen],
        )

    def load(self, on_error: OnError) -> tuple[Samples, "Source"]:
        """Read all samples.

        Returns:
            The samples, and the source of those that can be read.

        Raises:
            DataError: If pictures cannot be read and are not to be skipped, or none can be.
        """
        if self.pictures is None:
            return self.read(np.arange(self.count, dtype=np.int64)), self
        decoded = decode_images(self.pictures, self.names, self.pixel_format)
        readable = self._without(decoded.bad, on_error)
        decoded.tally.warn(self.pixel_format)
        return decoded.images, readable

    def look_through(self, on_error: OnError) -> "Source":
        """Decode every picture once, and keep none.

        Returns:
            The source of the pictures that can be read.

        Raises:
            DataError: If pictures cannot be read and are not to be skipped, or none can be.
        """
        if self.pictures is None:
            return self
        if self.count >= _MANY:
            _logger.warning(
                "Checking that %d pictures can be read; coterie import_data does so once for many "
                "runs.",
                self.count,
            )
        bad, tally, digests = look_through(self.pictures, self.names, self.pixel_format)
        readable = replace(self, digests=digests)._without(bad, on_error)
        tally.warn(self.pixel_format)
        return replace(readable, contents=digest(digests))

    def _without(self, bad: dict[int, UnreadablePictureError], on_error: OnError) -> "Source":
        if not bad:
            return self
        errors = list(bad.values())
        if on_error == "refuse" or len(bad) == self.count:
            refuse(
                errors,
                self.count,
                "repair them or take them out (coterie check_data lists all)",
                skip="data.on_error=skip",
            )
        tell_skipped(errors, self.count)
        return self.left_out({n: Unreadable(e.name, e.reason) for n, e in bad.items()})

    def left_out(self, bad: Mapping[int, Unreadable]) -> "Source":
        """Leave rows out, and note them as skipped."""
        good = np.setdiff1d(np.arange(self.count), list(bad))
        return replace(self.rows(good), skipped=(*self.skipped, *bad.values()))

    def stream(self) -> StreamedSamples:
        """Return the samples as an array that is read when it is indexed."""
        first = self.read(np.zeros(1, dtype=np.int64))
        return StreamedSamples(
            shape=(self.count, *first.shape[1:]),
            dtype=first.dtype,
            read=self.read
            if self.digests is None
            else partial(_read_unchanged, self.read, self.digests, self.names),
            contents=self.contents,
        )


def source_from_arrays(images: Images, labels: Labels) -> Source:
    """Return a source of images (n, channels, height, width) in memory."""
    return Source(count=len(images), read=lambda rows: images[rows], labels=labels)


def source_from_pictures(
    pictures: Sequence[Picture], names: Sequence[str], pixel_format: PixelFormat
) -> Source:
    """Return a source of encoded pictures; see `coterie.datamodules.decoding`."""

    def read(rows: Indices) -> Images:
        return read_images(
            [pictures[row] for row in rows], [names[row] for row in rows], pixel_format
        )

    return Source(
        count=len(pictures), read=read, pictures=pictures, names=names, pixel_format=pixel_format
    )


def merge_sources(first: Source, second: Source) -> Source:
    """Concatenate two sources; labels of a source without labels are unknown."""
    count = first.count

    def read(rows: Indices) -> Samples:
        # Rows are sorted, so all rows of `first` precede those of `second`.
        cut = int(np.searchsorted(rows, count))
        if cut == 0:
            return second.read(rows - count)
        if cut == len(rows):
            return first.read(rows)
        return np.concatenate([first.read(rows[:cut]), second.read(rows[cut:] - count)])

    labels = None
    if first.labels is not None or second.labels is not None:
        labels = np.concatenate([_labels(first), _labels(second)])
    both = first.pictures is not None and second.pictures is not None
    return Source(
        count=count + second.count,
        read=read,
        labels=labels,
        classes=first.classes,
        pictures=Chained(first.pictures or (), second.pictures or ()) if both else None,
        names=Chained(first.names, second.names) if first.names and second.names else (),
        folder=first.folder,
        features=first.features,
        pixel_format=first.pixel_format,
    )


def _read_unchanged(
    read: Callable[[Indices], Samples],
    digests: NDArray[np.uint8],
    names: Sequence[str],
    rows: Indices,
) -> Samples:
    """Read pictures, which must hold what they held when they were looked through.

    Raises:
        DataError: If one holds something else now.
    """
    found = read(rows)
    for row, picture in zip(rows.tolist(), found, strict=True):
        if (picture_digest(picture) != digests[row]).any():
            raise DataError(
                f"{names[row]}: it was replaced while the run read it; put it back and resume, or "
                "start a new run."
            )
    return found


def _labels(source: Source) -> Labels:
    return np.full(source.count, -1, np.int64) if source.labels is None else source.labels
