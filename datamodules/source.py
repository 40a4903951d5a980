"""Sources: samples that are read on demand, with what is known of each at once."""

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
    """Samples that are read on demand, so that a small subset costs little.

    Attributes:
        count: How many samples there are.
        read: Gives the samples of some rows, which come sorted: int64 (m,) to uint8 images
            (m, channels, height, width) or float32 vectors (m, features).
        labels: int64 classes (n,), -1 for unknown ones; or None.
        classes: The classes' names, where the files tell.
        owners: The client that each sample comes from, int64 (n,), or None.
        owner_names: These clients' names.
        pictures: Where samples are encoded pictures: the files, or the bytes of files.
        names: What each of these is called in errors.
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
        """The source itself, or a random subset with the classes' proportions, in order."""
        if limit is None or limit >= self.count:
            return self
        labels = np.zeros(self.count, np.int64) if self.labels is None else self.labels
        return self.rows(stratified_subset(labels, limit, seed))

    def rows(self, chosen: Indices) -> "Source":
        """The source of these rows, in ascending order."""
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
        """Every sample."""
        return self.read(np.arange(self.count, dtype=np.int64))


def source_from_arrays(images: Images, labels: Labels) -> Source:
    """A source over images (n, channels, height, width) that are in memory already."""
    return Source(count=len(images), read=lambda rows: images[rows], labels=labels)


def source_from_pictures(
    pictures: Sequence[Picture], names: Sequence[str], *, mode: Mode, size: Size | None = None
) -> Source:
    """A source over encoded pictures, see `image_files.read_images`."""

    def read(rows: Indices) -> Images:
        chosen = [pictures[row] for row in rows], [names[row] for row in rows]
        return read_images(*chosen, mode=mode, size=size)

    return Source(count=len(pictures), read=read, pictures=pictures, names=names)


def merge_sources(first: Source, second: Source) -> Source:
    """The rows of `first`, then those of `second`; where one has no labels, they are unknown."""
    count = first.count

    def read(rows: Indices) -> Samples:
        # Rows come sorted, so all rows of `first` stand before those of `second`.
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
