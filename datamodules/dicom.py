"""DICOM pictures as a viewer shows them: rescaled, windowed, and with black as black.

Grey levels pass the modality's rescaling and the first window or table of the file (PS3.3 C.11.1
and C.11.2); without either, the file's lowest and highest level become black and white. MONOCHROME1
is inverted. Colours are converted to RGB.
"""

import logging
import struct
import zlib
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from coterie.config.growth import check_growth, most_from
from coterie.config.regular_files import open_regular
from coterie.datamodules.decoding_memory import Room, in_parts
from coterie.datamodules.picture_files import (
    MAX_PIXELS,
    UnfitPictureError,
    check_pixels,
    check_scans,
    choose_frame,
    jpeg_segments,
)
from coterie.errors import DataError

Levels = tuple[float, float]
"""Grey levels that become black and white."""

_PREAMBLE, _PREFIX = 128, 16
_JPEG = b"\xff\xd8"
_JPEG_FRAMES = frozenset({*range(0xC0, 0xD0), 0xF7}) - {0xC4, 0xC8, 0xCC}
"""Segments of a JPEG, or JPEG-LS, that have its size."""
_ITEM, _PIXEL_DATA = b"\xfe\xff\x00\xe0", b"\xe0\x7f\x10\x00"
"""The tags (FFFE,E000) of an item and (7FE0,0010) of the picture."""
_MOST_ITEMS, _HEADER = 100_000, 16 << 20
"""Items, and bytes before the picture, of a deflated file."""
_COPIES = 24
"""Bytes that a number takes besides, as decimal numbers between the steps."""


def is_dicom(content: bytes) -> bool:
    """Return whether a file's content starts as part 10 of the DICOM standard says."""
    return content[_PREAMBLE : _PREAMBLE + 4] == b"DICM"


def is_dicom_file(path: Path) -> bool:
    """Return whether a file starts as DICOM says; false if it cannot be read."""
    try:
        with open_regular(path) as file:
            return is_dicom(file.read(_PREAMBLE + 4))
    except OSError:
        return False


class _Packed(BytesIO):
    """A file whose remainder pydicom can read only if inflating it does not grow too much."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next bytes, or all."""
        content = super().read(size)
        if size is None or size < 0:
            with suppress(zlib.error):  # it is not deflated, or damaged
                inflated = zlib.decompressobj(-zlib.MAX_WBITS).decompress(
                    content, most_from(len(content)) + 1
                )
                check_growth(len(content), len(inflated))
                _check_elements(inflated)
        return content


def _check_elements(inflated: bytes) -> None:
    """Refuse too many elements, since pydicom makes objects for each of them.

    Raises:
        ValueError: If there are too many items, or too much stands before the picture.
    """
    items = inflated.count(_ITEM)
    if items > _MOST_ITEMS:
        raise ValueError(f"it has {items:,} items, and {_MOST_ITEMS:,} are read at most")
    if len(inflated) > _HEADER and inflated.find(_PIXEL_DATA, 0, _HEADER) < 0:
        raise ValueError(f"it has no picture in its first {_HEADER >> 20} MiB")


def read_dicom(
    content: bytes,
    levels: Levels | None,
    frame: int | None = None,
    max_pixels: int = MAX_PIXELS,
    room: Room | None = None,
) -> NDArray[np.uint8]:
    """Decode a DICOM file.

    Args:
        content: The file.
        levels: Rescaled levels, such as Hounsfield units, that become black and white, in place of
            the file's window.
        frame: Which frame to take of several; None refuses these.
        max_pixels: Pixels of a frame, at most.
        room: The memory that it may take; by default it is not counted.

    Returns:
        uint8 (height, width), or (height, width, 3) in RGB.

    Raises:
        DataError: If pydicom is not installed.
        UnfitPictureError: If the file holds several frames, and none is chosen, or too many pixels.
        ValueError: If the file holds no picture that can be decoded.
    """
    try:
        import pydicom
        from pydicom.pixels import apply_color_lut, pixel_array
        from pydicom.uid import ImplicitVRLittleEndian
    except ImportError as error:
        raise DataError(
            "DICOM pictures are read by pydicom, which is not installed; pip install "
            "'coterie[medical]'."
        ) from error
    logging.getLogger("pydicom").setLevel(logging.CRITICAL)  # its errors are raised as well
    try:
        file = pydicom.dcmread(_Packed(content), force=True)
        frames = _count_frames(file)
        chosen = choose_frame(frames, frame)
        pixels, samples = int(file.Rows) * int(file.Columns), int(file.get("SamplesPerPixel") or 1)
        stored = samples * int(file.BitsAllocated) / 8
        check_pixels(pixels, max_pixels, stored)
        if room is not None:
            room.take(int(pixels * (2 * stored + _COPIES * samples)))
        if "TransferSyntaxUID" not in file.file_meta:  # a file from before part 10
            file.file_meta.TransferSyntaxUID = ImplicitVRLittleEndian
        _check_frame(file, frames, chosen)
        found = pixel_array(file, index=chosen)
        if file.PhotometricInterpretation == "PALETTE COLOR":
            coloured = apply_color_lut(found, file)
            return _eight_bits(coloured, 8 * coloured.dtype.itemsize)
        if found.ndim == 3:  # pydicom has converted YCbCr
            return _eight_bits(found, int(file.BitsStored))
        return _grey(file, found, levels)
    except UnfitPictureError:
        raise
    except Exception as error:  # decoders raise errors of all kinds
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from error


def _check_frame(file: Any, frames: int, chosen: int) -> None:
    """Refuse a compressed frame of another size than the file says, by which it is decoded.

    Raises:
        ValueError: If so.
    """
    if not file.file_meta.TransferSyntaxUID.is_compressed:
        return
    from pydicom.encaps import get_frame

    places = [file.get(name) for name in ("ExtendedOffsetTable", "ExtendedOffsetTableLengths")]
    packed = get_frame(
        file.PixelData,
        chosen,
        number_of_frames=frames,
        extended_offsets=None if None in places else (places[0], places[1]),
    )
    size = _size_of(packed)
    if size is not None and size != (file.Columns, file.Rows):
        raise ValueError(
            f"its picture is of {size[0]}×{size[1]} pixels, and its header says "
            f"{file.Columns}×{file.Rows}"
        )
    if packed.startswith(_JPEG):
        check_scans(packed, int(file.Columns) * int(file.Rows))


def _size_of(packed: bytes) -> tuple[int, int] | None:
    """Return the width and height of a JPEG or JPEG 2000; None of RLE, which has none itself."""
    if packed.startswith(_JPEG):
        for kind, start in jpeg_segments(packed):
            if kind in _JPEG_FRAMES:
                height, width = struct.unpack(">HH", packed[start + 1 : start + 5])
                return width, height
        raise ValueError("it holds a JPEG without a size")
    Image.init()
    factory, accept = Image.OPEN["JPEG2000"]
    if accept is None or accept(packed[:_PREFIX]) is not True:
        return None
    width, height = factory(BytesIO(packed), "").size
    return width, height


def _count_frames(file: Any) -> int:
    if "PixelData" not in file:
        raise ValueError("it is a DICOM file without a picture")
    return int(file.get("NumberOfFrames") or 1)


def stretch(values: NDArray[Any], low: float, high: float) -> NDArray[np.uint8]:
    """Map low..high to 0..255, rounded; values outside become black or white."""

    def convert(part: NDArray[Any]) -> NDArray[np.uint8]:
        shares = (part.astype(np.float64) - low) / (high - low)
        return np.rint(np.clip(shares, 0, 1) * 255).astype(np.uint8)

    return in_parts(values, convert)


def _grey(file: Any, pixels: NDArray[Any], levels: Levels | None) -> NDArray[np.uint8]:
    from pydicom.pixels import apply_modality_lut, apply_voi

    values = np.asarray(apply_modality_lut(pixels, file))
    if levels is not None:
        shown = stretch(values, *levels)
    elif file.get("VOILUTSequence"):
        bits = int(file.VOILUTSequence[0].LUTDescriptor[2])
        shown = stretch(apply_voi(values, file), 0, 2**bits - 1)
    elif file.get("WindowCenter") not in (None, "") and file.get("WindowWidth") not in (None, ""):
        shown = _windowed(file, values)
    else:
        shown = _full_range(file, pixels, values)
    return 255 - shown if file.PhotometricInterpretation == "MONOCHROME1" else shown


def _windowed(file: Any, values: NDArray[Any]) -> NDArray[np.uint8]:
    """Apply the file's first window."""
    centre, width = (_first(file[name].value) for name in ("WindowCenter", "WindowWidth"))
    if file.get("VOILUTFunction", "LINEAR") == "SIGMOID":
        shares = 1 / (1 + np.exp(np.clip(-4 * (values - centre) / width, -700, 700)))
        return stretch(shares, 0, 1)
    if file.get("VOILUTFunction", "LINEAR") == "LINEAR":  # the standard's off-by-one form
        centre, width = centre - 0.5, width - 1
    width = max(width, 1e-6)  # a width of one is a threshold
    return stretch(values, centre - width / 2, centre + width / 2)


def _full_range(file: Any, pixels: NDArray[Any], values: NDArray[Any]) -> NDArray[np.uint8]:
    """Stretch the levels that occur, without padding, from black to white."""
    padding = file.get("PixelPaddingValue")
    inside = values if padding is None else values[pixels != padding]
    if not inside.size or inside.min() == inside.max():
        return np.zeros(values.shape, np.uint8)
    return stretch(values, float(inside.min()), float(inside.max()))


def _first(value: Any) -> float:
    return float(value[0] if hasattr(value, "__getitem__") else value)


def _eight_bits(pixels: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    """Convert colours of 8 or more bits to 8 bits."""
    found: NDArray[np.uint8] = (pixels >> max(0, bits - 8)).astype(np.uint8)
    return found
