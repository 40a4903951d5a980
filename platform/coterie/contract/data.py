"""Data sets as the engine sees them: arrays, and the rows of each client."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int64, Shaped

from coterie.contract.samples import StreamedSamples

Indices = Int64[np.ndarray, "_"]
"""Row or client numbers."""

Samples = Shaped[np.ndarray, "_ ..."] | Shaped[StreamedSamples, "_ ..."]
"""Samples in memory, or samples that are read when they are indexed."""


class Unreadable(NamedTuple):
    """A sample that could not be read and was left out.

    Attributes:
        name: Its file, or its place in one.
        reason: What is wrong with it.
    """

    name: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class DataArrays:
    """A whole data set, in memory or streamed; `check_data` refuses shapes that do not fit.

    Attributes:
        name: Name of the data set, for tables and the summary.
        samples: Training samples: uint8 images (n, channels, height, width), or float32 feature
            vectors (n, features).
        labels: Classes, -1 where unknown, or None. Only evaluation, partitions and supervised
            methods see them.
        test_samples: Held-out samples in the same form, or None.
        test_labels: Their classes, or None.
        classes: Names of the classes; empty without labels.
        owners: The client of each sample, or None if unknown.
        owner_names: Names of these clients.
        names: What the training samples are called, such as their files; empty if nothing.
        test_names: The same of the test samples.
        skipped: What was left out, because it cannot be read.
        features: Names of the features of vectors; empty if unknown.
    """

    name: str
    samples: Samples
    labels: Int64[np.ndarray, "_"] | None = None
    test_samples: Samples | None = None
    test_labels: Int64[np.ndarray, "_"] | None = None
    classes: tuple[str, ...] = ()
    owners: Int64[np.ndarray, "_"] | None = None
    owner_names: tuple[str, ...] = ()
    names: Sequence[str] = ()
    test_names: Sequence[str] = ()
    skipped: tuple[Unreadable, ...] = ()
    features: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample: (channels, height, width) or (features,)."""
        return tuple(self.samples.shape[1:])


@dataclass(frozen=True, kw_only=True)
class Survey:
    """A client's data as described before the run, without samples or labels.

    Attributes:
        size: Number of training samples.
        shape: Shape of a sample.
        dtype: The samples' dtype, "uint8" or "float32".
        classes: Names of its classes; empty without labels.
        labelled: Whether every sample has a label.
        digest: Of the whole of it, so that a resumed run sees that it has changed.
        features: Names of the features of vectors; empty if unknown.
    """

    size: int
    shape: tuple[int, ...]
    dtype: str
    classes: tuple[str, ...]
    labelled: bool
    digest: str = ""
    features: tuple[str, ...] = ()

    @classmethod
    def of(cls, data: DataArrays) -> "Survey":
        """Describe a client's data."""
        from coterie.contract.content import data_digest

        labelled = data.labels is not None and bool((data.labels >= 0).all())
        names = data.classes if data.labels is not None else ()
        return cls(
            size=len(data.samples),
            shape=data.shape,
            dtype=data.samples.dtype.name,
            classes=names,
            labelled=labelled,
            digest=data_digest(data),
            features=data.features,
        )


@runtime_checkable
class NodeLocalDataModule(Protocol):
    """Node-local data: each client's data stays in place, and is read where the client trains."""

    @property
    def client_names(self) -> tuple[str, ...]:
        """The clients' names, in the order of their numbers."""

    def local_arrays(self, client: int) -> DataArrays:
        """Read one client's own data, in place.

        Raises:
            DataError: If it is missing or unreadable there.
        """


class SampleBatch(NamedTuple):
    """Consecutive samples of a stream.

    Attributes:
        samples: uint8 images (n, channels, height, width), or float32 vectors (n, features).
        names: Each sample's name in its source, or None.
        clients: The name of each sample's client, "" if it has none; or None.
    """

    samples: Shaped[np.ndarray, "n ..."]
    names: tuple[str, ...] | None = None
    clients: tuple[str, ...] | None = None


class DataModule(Protocol):
    """What the engine needs of a data module; Lightning's own hooks are for plain Lightning."""

    def arrays(self) -> DataArrays:
        """Read the data set.

        Raises:
            DataError: If it is missing (of what, where, how to get it) or unreadable.
        """


@runtime_checkable
class KnowsGroups(Protocol):
    """A partition whose clients belong to groups, such as those with the same classes."""

    def membership(self) -> Indices:
        """Return each client's true group, from 0."""


class Partition(Protocol):
    """Interface for distributing a data set's rows over clients."""

    def split(self, data: DataArrays, seed: int) -> Sequence[Indices]:
        """Return each client's rows, sorted, as a function of data and seed.

        Raises:
            DataError: If it cannot be done: no labels, more clients than samples, …
        """
