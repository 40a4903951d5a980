"""Arrays of numbers in MATLAB's files of version 5, as SVHN's are, of limited growth."""

import zlib
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.config.growth import check_growth, most_from

_HEADER, _VERSION = 128, b"\0\1IM"
"""Bytes before the first element, and the last of them: version 5, little-endian."""
_MATRIX, _COMPRESSED = 14, 15
"""Types of elements."""
_NUMBERS = dict(zip((1, 2, 3, 4, 5, 6, 7, 9, 12, 13), "bBhHiIfdqQ", strict=True))
"""Types of elements that are numbers."""
_CLASSES = range(6, 16)
"""Classes of matrices that are numbers; others are text, cells, objects and sparse matrices."""


def read_matlab(content: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays of numbers in a file by name, without other variables.

    Raises:
        ValueError: If it is damaged, of another version, or grows too much.
        LookupError: If it is damaged, as zlib.error.
    """
    if content[_HEADER - len(_VERSION) : _HEADER] != _VERSION:
        raise ValueError("it is not a MATLAB file of version 5")
    found, whole = {}, 0
    for element in _elements(memoryview(content)[_HEADER:]):
        kind, matrix = element
        if kind == _COMPRESSED:  # each is one matrix
            most = most_from(len(content)) - whole
            unzipped = zlib.decompressobj().decompress(matrix, most + 1)
            whole += len(unzipped)
            check_growth(len(content), whole)
            kind, matrix = next(_elements(memoryview(unzipped)), element)
        if kind != _MATRIX:
            raise ValueError("it holds other elements than variables")
        (_, flags), (_, shape), (_, name), (numbers, values) = islice(_elements(matrix), 4)
        if flags[0] in _CLASSES:
            array = np.frombuffer(values, f"<{_NUMBERS[numbers]}")
            found[bytes(name).decode()] = array.reshape(np.frombuffer(shape, "<i4"), order="F")
    return found


def _elements(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the type and the content of each element."""
    place = 0
    while place < len(data):
        kind, size = np.frombuffer(data[place : place + 8], "<u4").tolist()
        start = place + 8
        place = start + size
        if kind >> 16:  # up to four bytes stand in place of the size, which is beside the type
            kind, size, start, place = kind & 0xFFFF, min(kind >> 16, 4), start - 4, start
        elif kind != _COMPRESSED:
            place += -size % 8
        if start + size > len(data):
            raise ValueError("it ends early")
        yield kind, data[start : start + size]
