"""Arrays in NumPy's .npz and .npy files: their headers, and their rows."""

import math
import os
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from coterie.config.growth import check_growth, check_rows
from coterie.datamodules.stored_rows import StoredRows

_BLOCK = 2**20
_MOST_SIDES = 32
"""Dimensions that an array has at most, in every version of NumPy."""
DAMAGE = (
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    OverflowError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What zipfile and NumPy raise for damaged files; NumPy parses headers as Python's literals."""
_ZIP_LENGTHS = 26
"""Where a zip member's own header has the lengths of the fields after it."""


def header_of(path: Path, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and dtype of an array in a file; its errors are those of `DAMAGE`."""
    if path.suffix == ".npy":
        with path.open("rb") as file:
            shape, _, dtype = read_header(file)
        return shape, dtype
    with zipfile.ZipFile(path) as archive:
        entry = archive.getinfo(f"{name}.npy")
        with archive.open(entry) as member:
            shape, _, dtype = read_header(member)
    if entry.compress_type != zipfile.ZIP_STORED:
        check_growth(entry.compress_size, entry.file_size)
    return shape, dtype


def open_array(path: Path, name: str) -> NDArray[Any] | StoredRows:
    """Return an array in a file, whose rows are read on demand unless it is compressed.

    Errors are of `DAMAGE`.
    """
    if path.suffix == ".npy":
        with path.open("rb") as file:
            return _rows(path, file)
    with zipfile.ZipFile(path) as archive:
        entry = archive.getinfo(f"{name}.npy")
        if entry.compress_type != zipfile.ZIP_STORED:
            check_growth(entry.compress_size, entry.file_size)
            with archive.open(entry) as member:
                shape, _, dtype = read_header(member)
            check_rows(shape[0] if shape else 1, path.stat().st_size)
            if math.prod(shape) * dtype.itemsize > entry.file_size:
                raise ValueError(f"its array of shape {shape} is cut short")
            with archive.open(entry) as member:
                return np.asarray(np.lib.format.read_array(member, allow_pickle=False))
        with archive.open(entry) as member:  # reading to the end checks the checksum
            while member.read(_BLOCK):
                pass
    with path.open("rb") as file:
        file.seek(entry.header_offset + _ZIP_LENGTHS)
        file.seek(sum(struct.unpack("<HH", file.read(4))), os.SEEK_CUR)
        return _rows(path, file)


def _rows(path: Path, file: IO[bytes]) -> NDArray[Any] | StoredRows:
    """Return the array whose header is at the file's current position."""
    shape, order, dtype = read_header(file)
    whole = math.prod(shape)
    if not whole:
        return np.empty(shape, dtype)
    if path.stat().st_size < file.tell() + whole * dtype.itemsize:
        raise ValueError(f"its array of shape {shape} is cut short")
    if shape and order == "C":
        return StoredRows(path, file.tell(), shape, dtype)
    return np.fromfile(file, dtype, whole).reshape(shape, order=order)


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], Literal["C", "F"], np.dtype[Any]]:
    """Read shape, order and dtype from an array's header, up to the array's first value.

    Raises:
        ValueError: If it holds Python objects, values without bytes, or is no such array.
    """
    version = np.lib.format.read_magic(file)
    one = version == (1, 0)
    read = np.lib.format.read_array_header_1_0 if one else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if len(shape) > _MOST_SIDES or any(type(side) is not int or side < 0 for side in shape):
        raise ValueError(f"its shape is {shape}, which no array has")
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are never loaded (allow_pickle)")
    if not dtype.itemsize:  # a file of any size has as many of them as it says
        raise ValueError(f"its values are {dtype.str}, which have no bytes")
    return shape, "F" if fortran else "C", dtype
