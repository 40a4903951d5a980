"""Converts levels of more than 8 bits to 8 bits, as the file or the user says.

A level v of b stated bits becomes v·255/(2^b - 1), where Pillow would clip it at 255; decimal
numbers in 0..1 become v·255; anything else needs `data.levels`.
"""

import re
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from coterie.datamodules.decoding_memory import in_parts
from coterie.datamodules.dicom import Levels, stretch
from coterie.datamodules.picture_files import UnfitPictureError

_TWELVE_BITS = 4095
_GAP = rb"(?:\s|#[^\n]*\n)+"
_PGM = re.compile(rb"P[25]" + _GAP + rb"\d+" + _GAP + rb"\d+" + _GAP + rb"(\d+)")
"""The start of a PGM: width, height and largest level, between comments."""
_TIFF_BITS, _TIFF_PHOTOMETRIC, _WHITE_IS_ZERO = 258, 262, 0
_SAVE = "or save it with 8 or 16 bits"


def eight_bits(
    values: NDArray[Any], bits: int, levels: Levels | None
) -> tuple[NDArray[np.uint8], bool]:
    """Scale levels to 0..255, rounded.

    Integers have `bits` bits. Without `levels`, integers of 0..2^bits - 1 and decimal numbers
    of 0..1 become black to white.

    Returns:
        uint8 of the same shape; and whether levels of 16 bits use 12 only, and so come out dark.

    Raises:
        UnfitPictureError: If the numbers are of another range, and `levels` is None.
    """
    if levels is not None:
        return stretch(values, *levels), False
    if values.dtype.kind == "b":
        return values.astype(np.uint8) * np.uint8(255), False
    low, high = (values.min(), values.max()) if values.size else (0, 0)
    if values.dtype.kind == "f":
        if not (np.isfinite(low) and np.isfinite(high)):
            raise UnfitPictureError("is of decimal numbers that are not all finite", _SAVE[3:])
        if not 0 <= low <= high <= 1:
            raise _beyond(f"is of decimal numbers in {low:g}..{high:g}", low, high)
        return stretch(values, 0, 1), False
    if low < 0 or high > 65535:
        raise _beyond(f"is of numbers in {low}..{high}", low, high)
    if bits == 8 and high <= 255:
        return values.astype(np.uint8), False
    if high >= 2**bits:
        bits = 16  # the samples are scaled to 16 bits, as PNG wants it
    if bits == 16:  # 65535 = 257·255, so this is v/257 rounded, without floats
        dark = 0 < high <= _TWELVE_BITS
        return in_parts(values, _from_16_bits), bool(dark)
    return stretch(values, 0, 2**bits - 1), False


def _from_16_bits(values: NDArray[Any]) -> NDArray[np.uint8]:
    return ((values.astype(np.int64) + 128) // 257).astype(np.uint8)


def _beyond(what: str, low: Any, high: Any) -> UnfitPictureError:
    found = f"[{low:g},{high:g}]"
    return UnfitPictureError(
        what, f"set data.levels to what is black and white, such as {found}, {_SAVE}"
    )


def deep_levels(image: Image.Image, content: bytes, levels: Levels | None) -> tuple[Any, int]:
    """Return the levels of a grey picture of more than 8 bits, and its number of bits."""
    values = np.asarray(image)
    # To native order: NumPy below 2.3 crashes where it compares other levels with -1.
    values = values.astype(values.dtype.newbyteorder("="), copy=False)
    if levels is not None and image.format == "PPM":
        values = _unscaled(values, content)
    return values, _stated_bits(image, content)


def white_is_zero(image: Image.Image) -> bool:
    """Return whether a TIFF's levels count from white, which Pillow handles up to 8 bits only."""
    return image.format == "TIFF" and tiff_tag(image, _TIFF_PHOTOMETRIC, 1) == _WHITE_IS_ZERO


def tiff_bits(image: Any) -> int:
    """Return the number of bits of a sample of a TIFF."""
    return tiff_tag(image, _TIFF_BITS, 1)


def tiff_tag(image: Any, tag: int, default: int) -> int:
    """Return a number in a TIFF's header."""
    value = image.tag_v2.get(tag, default)
    return int(value[0] if isinstance(value, tuple) else value)


def _stated_bits(image: Image.Image, content: bytes) -> int:
    """Return the number of bits of a grey level that the file states: 9 to 16."""
    stated = 16
    if image.format == "TIFF":
        stated = tiff_tag(image, _TIFF_BITS, 16)
    elif image.format == "PNG":
        stated = next((chunk[0] for kind, chunk in _png_chunks(content) if kind == b"sBIT"), 16)
    return stated if 8 < stated < 16 else 16


def _unscaled(values: NDArray[np.integer], content: bytes) -> NDArray[np.integer]:
    """Return a PGM's levels as in the file, since Pillow scales them to 16 bits."""
    header = _PGM.match(content)
    largest = 65535 if header is None else int(header[1])
    found: NDArray[np.integer] = np.rint(values * (largest / 65535)).astype(np.int64)
    return found


def _png_chunks(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Return the chunks of a PNG before its pixels."""
    place = 8
    while place + 8 <= len(content):
        length, kind = struct.unpack_from(">I4s", content, place)
        if kind == b"IDAT":
            return
        yield kind, content[place + 8 : place + 8 + length]
        place += length + 12
