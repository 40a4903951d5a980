"""What a data set looks like to the engine: arrays, and which of their rows each client holds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from coterie.contract.samples import StreamedSamples

Indices = NDArray[np.int64]

Samples = NDArray[np.generic] | StreamedSamples
"""Samples in memory, or samples that are read when they are indexed."""


@dataclass(frozen=True, kw_only=True)
class DataArrays:
    """A whole data set, in memory or streamed from files.

    Attributes:
        name: The data set's name, for tables and the summary.
        samples: Training samples: uint8 images (n, channels, height, width), or float32 feature
            vectors (n, features).
        labels: int64 classes (n,), -1 where unknown, or None. Only evaluation, partitions and
            supervised methods see them.
        test_samples: Held-out samples in the same form, or None.
        test_labels: Their classes, or None.
        classes: The classes' names; empty when there are no labels.
        owners: The client that each sample comes from, int64 (n,), or None if unknown.
        owner_names: These clients' names.
    """

    name: str
    samples: Samples
    labels: NDArray[np.int64] | None = None
    test_samples: Samples | None = None
    test_labels: NDArray[np.int64] | None = None
    classes: tuple[str, ...] = ()
    owners: NDArray[np.int64] | None = None
    owner_names: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample: (channels, height, width) or (features,)."""
        return tuple(self.samples.shape[1:])


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What a client tells of its own data before the run: no sample, and of labels only the names.

    Attributes:
        size: How many training samples it has.
        shape: A sample's shape.
        dtype: The samples' type, "uint8" or "float32".
        classes: The names of its classes; empty without labels.
        labelled: Whether every sample has a label.
    """

    size: int
    shape: tuple[int, ...]
    dtype: str
    classes: tuple[str, ...]
    labelled: bool

    @classmethod
    def of(cls, data: DataArrays) -> "Survey":
        """What there is to tell of a client's data."""
        labelled = data.labels is not None and bool((data.labels >= 0).all())
        names = data.classes if data.labels is not None else ()
        return cls(
            size=len(data.samples),
            shape=data.shape,
            dtype=data.samples.dtype.name,
            classes=names,
            labelled=labelled,
        )


@runtime_checkable
class SiloDataModule(Protocol):
    """Data that stays where its clients are: each part is read by the process that trains on it."""

    @property
    def client_names(self) -> tuple[str, ...]:
        """The clients' names, in the order of their numbers."""

    def local_arrays(self, client: int) -> DataArrays:
        """Read one client's own data, where it lies.

        Raises:
            DataError: If it is missing or unreadable there.
        """


class SampleBatch(NamedTuple):
    """Some samples of a stream, in its order.

    Attributes:
        samples: uint8 images (n, channels, height, width), or float32 vectors (n, features).
        names: What each is called where it came from, or None.
    """

    samples: NDArray[np.generic]
    names: tuple[str, ...] | None = None


class DataModule(Protocol):
    """What the engine asks of a data module; Lightning's own methods are for other users of it."""

    def arrays(self) -> DataArrays:
        """Read the data set.

        Raises:
            DataError: If it is missing (what was looked for, where, how to get it) or unreadable.
        """


@runtime_checkable
class KnowsGroups(Protocol):
    """A partition whose clients belong to groups, such as those with the same classes."""

    def membership(self) -> Indices:
        """Each client's true group (clients,), from 0."""


class Partition(Protocol):
    """Spreads a data set's rows over clients."""

    def split(self, data: DataArrays, seed: int) -> Sequence[Indices]:
        """Each client's rows, sorted; the same for the same data and seed.

        Raises:
            DataError: If it cannot be done: no labels, more clients than samples, …
        """
