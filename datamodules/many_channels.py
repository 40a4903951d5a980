"""Reads TIFFs of many or deep channels, which Pillow cannot read or reduces to 8 bits."""

import logging
import math
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.datamodules.decoding_memory import Room
from coterie.datamodules.picture_files import (
    UnfitPictureError,
    check_pixels,
    check_tiles,
    choose_frame,
)
from coterie.datamodules.tiff_growth import check_parts

# tifffile logs each tag of a damaged file, of which one sentence is told.
logging.getLogger("tifffile").setLevel(logging.CRITICAL)

_MOST_PAGES = 10_000
_COPIES = 2
"""Bytes that each number takes besides: in 8 bits, and in another order."""
_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


def is_tiff(content: bytes) -> bool:
    """Return whether a file begins as a TIFF or BigTIFF."""
    return content.startswith(_STARTS)


def read_tiff(
    content: bytes, frame: int | None, max_pixels: int, room: Room
) -> NDArray[np.generic]:
    """Decode a TIFF with tifffile.

    Returns:
        Numbers (height, width, channels), as they are stored.

    Raises:
        UnfitPictureError: If tifffile is not installed, there are several pages and none is chosen,
            or the page is not a picture, too large, or takes more memory than `room` has.
        ValueError: If it is damaged, grows too much, or is compressed in a way that needs
            imagecodecs.
    """
    try:
        import tifffile
    except ImportError as error:
        raise UnfitPictureError(
            "is a TIFF that Pillow cannot read as it is", "pip install 'coterie[tiff]' to read it"
        ) from error
    with tifffile.TiffFile(BytesIO(content)) as file:
        pages = [page for page in _pages(file) if not getattr(page, "is_reduced", False)]
        page = pages[choose_frame(len(pages), frame)]
        size = _check_size(page, max_pixels, room)
        parts = zip(page.dataoffsets, page.databytecounts, strict=False)
        check_parts(content, parts, int(page.compression), size)
        values, axes = page.asarray(), page.axes
    if axes == "YX":
        return np.asarray(values[..., None])
    if axes == "SYX":
        return np.asarray(np.moveaxis(values, 0, 2))
    if axes != "YXS":
        raise UnfitPictureError(
            f"has the axes {axes}", "save it as height, width and channels in one page"
        )
    return np.asarray(values)


def _check_size(page: Any, max_pixels: int, room: Room) -> int:
    """Return a page's bytes.

    Raises:
        UnfitPictureError: If it is too large: a kilobyte can state ten channels of 200 million
            pixels.
    """
    pixels, numbers = page.imagewidth * page.imagelength, math.prod(page.shape)
    size: int = numbers * (1 if page.dtype is None else page.dtype.itemsize)
    check_pixels(pixels, max_pixels, size / max(1, pixels))
    tile = page.tilewidth * page.tilelength * max(1, page.tiledepth) if page.is_tiled else 0
    check_tiles(numbers, tile, len(page.dataoffsets))
    room.take(size + _COPIES * numbers)
    return size


def _pages(file: Any) -> Iterator[Any]:
    """Return a file's pages, which each name the place of the next one."""
    places: set[int] = set()
    for page in file.pages:
        if page.offset in places or len(places) >= _MOST_PAGES:
            raise ValueError(f"it has more than {_MOST_PAGES} pages, or its pages form a loop")
        places.add(page.offset)
        yield page
