"""Sources: samples that are read on demand, with their labels and owners."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.contract.data import Indices
from coterie.contract.samples import StreamedSamples
from datamodules.image_files import Mode, Picture, read_images
from datamodules.partitions import Labels, stratified_subset
from datamodules.resize import Size

Images = NDArray[np.uint8]
Samples = NDArray[Any]
"""uint8 images (n, channels, height, width) or float32 feature vectors (n, features)."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Samples that are read on demand, so that a small subset is cheap.

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
    """

    count: int
    read: Callable[[Indices], Samples]
    labels: Labels | None = None
    classes: tuple[str, ...] = ()
    owners: Indices | None = None
    owner_names: tuple[str, ...] = ()
    pictures: Sequence[Picture] | None = None
    names: Sequence[str] = ()

    def subset(self, limit: int | None, seed: int) -> "Source":
        """Draw up to `limit` samples with the classes' proportions, in order; all if None."""
        if limit is None or limit >= self.count:
            return self
        labels = np.zeros(self.count, np.int64) if self.labels is None else self.labels
        return self.rows(stratified_subset(labels, limit, seed))

    def rows(self, chosen: Indices) -> "Source":
        """Select rows, which must be ascending."""
        return replace(
            self,
            count=len(chosen),
            read=lambda rows: self.read(chosen[rows]),
            labels=None if self.labels is None else self.labels[chosen],
            owners=None if self.owners is None else self.owners[chosen],
            pictures=None if self.pictures is None else [self.pictures[row] for row in chosen],
            names=[self.names[row] for row in chosen] if self.names else (),
        )

    def stream(self) -> StreamedSamples:
        """The samples as an array that is read when it is indexed."""
        first = self.read(np.zeros(1, dtype=np.int64))
        return StreamedSamples(
            shape=(self.count, *first.shape[1:]), dtype=first.dtype, read=self.read
        )

    def read_all(self) -> Samples:
        """Read all samples."""
        return self.read(np.arange(self.count, dtype=np.int64))


def source_from_arrays(images: Images, labels: Labels) -> Source:
    """Source of images (n, channels, height, width) in memory."""
    return Source(count=len(images), read=lambda rows: images[rows], labels=labels)


def source_from_pictures(
    pictures: Sequence[Picture], names: Sequence[str], *, mode: Mode, size: Size | None = None
) -> Source:
    """Source of encoded pictures; see `image_files.read_images`."""

    def read(rows: Indices) -> Images:
        chosen = [pictures[row] for row in rows], [names[row] for row in rows]
        return read_images(*chosen, mode=mode, size=size)

    return Source(count=len(pictures), read=read, pictures=pictures, names=names)


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
    return Source(count=count + second.count, read=read, labels=labels, classes=first.classes)


def _labels(source: Source) -> Labels:
    return np.full(source.count, -1, np.int64) if source.labels is None else source.labels
