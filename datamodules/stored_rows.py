"""Rows of an array in a file, each read when it is asked for.

Not memory-mapped: a file that somebody cuts short would then end the process by a signal.
"""

import math
import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.config.regular_files import open_regular
from coterie.errors import DataError


@dataclass(frozen=True)
class StoredRows:
    """An array in C order that begins somewhere in a file.

    Attributes:
        path: The file.
        start: Bytes before the first value.
        shape: Of one dimension or more.
    """

    path: Path
    start: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of values."""
        return math.prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        """Return rows as an array's index does: one, a slice, or an array of row numbers.

        Raises:
            DataError: If the file ends before one.
        """
        numbers = np.arange(len(self))[rows]
        flat = np.atleast_1d(numbers)
        found = np.empty((len(flat), *self.shape[1:]), self.dtype)
        # Rows that follow one another are read at once.
        breaks = [0, *(np.flatnonzero(np.diff(flat) != 1) + 1).tolist(), len(flat)]
        with open_regular(self.path) as file:
            for first, last in pairwise(breaks):
                if last > first:
                    self._fill(file.fileno(), int(flat[first]), found[first:last])
        return found if np.ndim(numbers) else found[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Read all."""
        return self[:].astype(self.dtype if dtype is None else dtype, copy=False)

    def _fill(self, file: int, row: int, into: NDArray[Any]) -> None:
        """Read rows in order from this one on."""
        place = self.start + row * math.prod(self.shape[1:]) * self.dtype.itemsize
        view = memoryview(into.reshape(-1).view(np.uint8).data)
        while view:
            got = os.preadv(file, [view], place)
            if not got:
                raise DataError(
                    f"{self.path}: it was cut short while it was read; put it back as it was, and "
                    "start again."
                )
            view, place = view[got:], place + got
