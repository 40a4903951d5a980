"""The memory to decode a picture: estimated first, so that large ones are decoded one by one."""

from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from coterie.config.free_memory import free_memory
from coterie.datamodules.picture_files import UnfitPictureError
from coterie.tracking.formatting import format_bytes

_LARGE = 1 << 28
"""Bytes from which a picture is decoded while no other large one is."""
_SIDE = 16
"""Bytes for each row, which Pillow keeps the place of, and for each weight of a resize."""
_PART = 1 << 20
"""Numbers, or pixels, that are converted at a time."""
_ONE_BYTE, _TWO_BYTES = frozenset({"1", "L", "P"}), "I;16"
_large = Lock()


class Room:
    """The memory of one picture; while it is in use, no other large picture is decoded."""

    def __init__(self) -> None:
        self._alone = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._alone:
            _large.release()
            self._alone = False

    def take(self, needed: int) -> None:
        """Wait until no other large picture is decoded, if this is one.

        Raises:
            UnfitPictureError: If the machine has not so many bytes free.
        """
        if needed < _LARGE:
            return
        if not self._alone:
            self._alone = _large.acquire()
        if needed > (free := free_memory()):
            raise UnfitPictureError(
                f"takes {format_bytes(needed)} to decode, but this machine has "
                f"{format_bytes(free)} free",
                "make it smaller, or take it out",
            )


def bytes_of(image: Image.Image) -> int:
    """Return the bytes that Pillow keeps for a pixel."""
    if image.mode in _ONE_BYTE:
        return 1
    return 2 if image.mode.startswith(_TWO_BYTES) else 4


def bytes_of_rows(image: Image.Image) -> int:
    """Return the bytes that Pillow takes for a picture's rows besides their pixels."""
    return _SIDE * image.height


def bytes_to_resize(shape: tuple[int, ...], width: int) -> int:
    """Return the bytes to resize a picture: its rows in the new width, and tables of weights.

    Args:
        shape: Channels, height and width.
        width: The new width.
    """
    channels, height, old = shape
    return channels * height * width + 2 * _SIDE * (height + old)


def in_parts(
    values: NDArray[Any], convert: Callable[[NDArray[Any]], NDArray[np.uint8]]
) -> NDArray[np.uint8]:
    """Convert each number to 8 bits, a part at a time, since the steps take 8 bytes a number."""
    flat, found = values.reshape(-1), np.empty(values.size, np.uint8)
    for start in range(0, values.size, _PART):
        found[start : start + _PART] = convert(flat[start : start + _PART])
    return found.reshape(values.shape)


def tiles(width: int, height: int) -> Iterator[tuple[int, int, int, int]]:
    """Return boxes (left, top, right, bottom) of at most a million pixels that make up a picture.

    Most are rows of its whole width.
    """
    across = max(1, min(width, _PART))
    down = max(1, _PART // across)
    for top in range(0, height, down):
        for left in range(0, width, across):
            yield left, top, min(left + across, width), min(top + down, height)
