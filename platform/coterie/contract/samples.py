"""Samples that are read from files on demand, in place of an array in memory."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from coterie.errors import ContractError

Read = Callable[[NDArray[np.int64]], NDArray[Any]]
"""Rows (m,), ascending and distinct, to their samples (m, …)."""

PartT = TypeVar("PartT")
GivenT = TypeVar("GivenT")

_AHEAD = 2
"""Parts that are read while one is used."""


@dataclass(frozen=True, kw_only=True)
class StreamedSamples:
    """A read-only array (n, …) in files, whose rows are read when they are indexed.

    It is indexed by a slice or by int64 rows in any order, and gives NumPy arrays. Nothing is kept,
    so that the memory it takes does not depend on n. It travels to other processes as what `read`
    holds, such as paths.

    Attributes:
        shape: (n, …), as of an array.
        dtype: The type of what is read: uint8 or float32.
        read: Reads rows.
        contents: A digest of all samples, where all have been read once; else "".
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Read
    contents: str = ""

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of values."""
        return int(np.prod(self.shape))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: slice | NDArray[np.int64]) -> NDArray[Any]:
        """Read some samples (m, …), in the order of the index.

        Raises:
            IndexError: If a row is out of range.
            ContractError: If what is read has another shape or type than it should.
        """
        places = np.arange(len(self))[index] if isinstance(index, slice) else np.asarray(index)
        if len(places) and not -len(self) <= places.min() <= places.max() < len(self):
            raise IndexError(f"rows {places.min()}..{places.max()} of {len(self)} samples")
        rows, where = np.unique(places % max(1, len(self)), return_inverse=True)
        found = self.read(rows) if len(rows) else np.empty((0, *self.shape[1:]), self.dtype)
        if found.shape != (len(rows), *self.shape[1:]) or found.dtype != self.dtype:
            raise ContractError(
                f"read: it gave {found.dtype} of shape {found.shape} for {len(rows)} samples of "
                f"{self.dtype}, {self.shape[1:]}; return what they declare."
            )
        return found if np.array_equal(where, np.arange(len(rows))) else found[where]

    def arrays(self) -> Iterator[NDArray[Any]]:
        """Return the samples' arrays in memory: none here, since the samples are in files."""
        yield from ()

    def held_out(self) -> Iterator[NDArray[Any]]:
        """Return the arrays in memory of validation and test data: none here."""
        yield from ()

    def __array__(self, *args: Any, **kwargs: Any) -> NDArray[Any]:
        """Refuse to become an array, which might not fit in memory."""
        raise ContractError(
            f"samples of shape {self.shape} are read from files; index the rows that are needed."
        )


def picked(samples: Any, rows: NDArray[np.int64]) -> Any:
    """Return some samples (m, …), in any order: copies if they are in memory, else still unread."""
    if not isinstance(samples, StreamedSamples):
        return samples[rows]
    return StreamedSamples(
        shape=(len(rows), *samples.shape[1:]),
        dtype=samples.dtype,
        read=lambda places: samples[rows[places]],
    )


def read_ahead(
    read: Callable[[PartT], GivenT], parts: Iterable[PartT], *, threaded: bool
) -> Iterator[tuple[PartT, GivenT]]:
    """Read parts in order, ahead of their use in a thread if asked to.

    Args:
        read: Reads one part.
        parts: What is to be read; they are asked for one by one.
        threaded: Whether to read the next parts while one is used. At most three are in memory.
    """
    if not threaded:
        yield from ((part, read(part)) for part in parts)
        return
    waiting: deque[tuple[PartT, Future[GivenT]]] = deque()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="read-ahead") as pool:
        try:
            for part in parts:
                waiting.append((part, pool.submit(read, part)))
                if len(waiting) > _AHEAD:
                    first, given = waiting.popleft()
                    yield first, given.result()
            while waiting:
                first, given = waiting.popleft()
                yield first, given.result()
        finally:
            for _, given in waiting:  # the iteration was stopped early
                given.cancel()
