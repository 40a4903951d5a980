"""Opens one picture, and reads its format, size, frames and orientation.

Formats are Pillow's, but only those listed here are tried, and how large a picture may be is the
caller's choice rather than a setting of the whole process. A picture stands as its EXIF orientation
says, as viewers show it.
"""

import logging
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from coterie.errors import DataError

FORMATS = ("JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP", "GIF", "AVIF")
"""Pillow's names of the formats that are read; HEIC comes from pillow-heif."""
MAX_PIXELS = 200_000_000
"""Default limit on a picture's pixels, above that of any camera."""
PIXEL_BYTES = 4
"""Bytes of a pixel of four channels; pixels of more, as of ten channels, count as several."""
EXTENSIONS = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".ppm", ".pgm", ".pbm", ".pnm", ".bmp"),
    *(".tif", ".tiff", ".webp", ".gif", ".avif", ".heic", ".heif"),
)
"""Extensions of pictures that are not DICOM."""

_TILE_WIDTH, _TILE_LENGTH, _TILE_PLACES, _TILE_BYTES = 322, 323, 324, 325
_STRIP_ROWS, _STRIP_PLACES, _STRIP_BYTES = 278, 273, 279
_COMPRESSION, _CHANNELS = 259, 277
"""Tags of TIFF."""
_JPEG_IN_TIFF = frozenset({6, 7})
_MOST_IN_TILES, _TIMES = 1 << 24, 16
"""Pixels of tiles, and times the picture's, up to which they may be larger than it."""
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]", re.DOTALL)
"""What begins each segment of a JPEG; it does not occur in the data of a scan."""
_JPEG_START = b"\xff\xd8"
_SCAN, _END = 0xDA, 0xD9
_ALONE = frozenset({0x01, 0xD8})
"""Markers without a content."""
_SCANS = b"\xff\xda"
_MOST_SCANNED = 20 * MAX_PIXELS
"""Pixels that the scans of a JPEG go over, at most; encoders write about ten scans."""
_EXIF, _MOST_EXIF = b"Exif\0\0", 100
"""What EXIF begins with, and how many segments of it there may be; Pillow copies each for each."""
_ORIENTATION, _UPRIGHT = 0x0112, 1
_PREFIX = 16
_HEIF_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"})
_TURNS: dict[int, tuple[int, bool]] = {
    2: (0, True),
    3: (2, False),
    4: (2, True),
    5: (3, True),
    6: (3, False),
    7: (1, True),
    8: (1, False),
}
"""Quarter turns against the clock, and whether left and right are swapped, by EXIF orientation."""
_ONE_SHOT = frozenset({"MPO"})
_COUNTED = 100
"""Formats whose further frames belong to the first, such as a phone's brightness map."""

# Pillow warns of palettes and of damaged EXIF through Python's warnings, which nobody can act on,
# and logs what is damaged, of which one sentence is told.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
logging.getLogger("PIL").setLevel(logging.CRITICAL)


class UnfitPictureError(ValueError):
    """A picture that is intact, but cannot be used as it is.

    Attributes:
        what: What it is, to follow its name: "is of 3 frames".
    """

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}; {remedy}")
        self.what, self.remedy = what, remedy


def open_picture(content: bytes, *, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Open a picture without decoding it.

    Raises:
        DataError: If it is HEIC, and pillow-heif is not installed.
        UnidentifiedImageError: If it is of no listed format.
        UnfitPictureError: If it has more pixels.
    """
    prefix = content[:_PREFIX]
    Image.init()
    for name in (*FORMATS, *_heif(prefix)):
        factory, accept = Image.OPEN[name]
        if accept is not None and accept(prefix) is not True:
            continue
        if name == "JPEG" and content.count(_EXIF) > _MOST_EXIF:
            raise UnfitPictureError("has far too much EXIF", "save it again, or take it out")
        try:
            image = factory(BytesIO(content), "")
        except (SyntaxError, IndexError, TypeError, KeyError):  # Pillow goes on to the next too
            continue
        width, height = image.size
        check_pixels(width * height, max_pixels)
        check_effort(image, content)
        return image
    raise UnidentifiedImageError("its format is unknown")


def check_effort(image: Image.Image, content: bytes) -> None:
    """Refuse a picture that takes far more to decode than its pixels.

    Raises:
        UnfitPictureError: If its tiles are far larger than it, or its scans are too many.
    """
    if image.format == "TIFF":
        _check_tiff(image, content)
    elif content.startswith(_JPEG_START):
        check_scans(content, image.width * image.height)


def _check_tiff(image: Image.Image, content: bytes) -> None:
    tags = image.tag_v2  # type: ignore[attr-defined]  # of TIFF

    def number(tag: int, default: int) -> int:
        found = tags.get(tag, default)
        return found if isinstance(found, int) else default

    pixels, tile = image.width * image.height, number(_TILE_WIDTH, 0) * number(_TILE_LENGTH, 0)
    places, sizes = tags.get(_TILE_PLACES, ()), tags.get(_TILE_BYTES, ())
    check_tiles(pixels * max(1, number(_CHANNELS, 1)), tile, len(places))
    if number(_COMPRESSION, 1) in _JPEG_IN_TIFF:
        if not tile:
            tile = image.width * min(image.height, number(_STRIP_ROWS, image.height))
            places, sizes = tags.get(_STRIP_PLACES, ()), tags.get(_STRIP_BYTES, ())
        check_parts_scans(content, zip(places, sizes, strict=False), tile)


def check_tiles(pixels: int, tile: int, count: int) -> None:
    """Refuse a TIFF whose tiles are far larger than it, alone or together.

    Args:
        pixels: Those of the picture, each counted once for each channel.
        tile: The pixels of a tile.
        count: The number of tiles, of all channels.

    Raises:
        UnfitPictureError: If so.
    """
    if tile * count > max(_MOST_IN_TILES, _TIMES * pixels):
        raise UnfitPictureError(
            f"has tiles of {tile * count / 1e6:,.0f} million pixels",
            "save it again, or take it out",
        )


def check_parts_scans(content: bytes, parts: Iterable[tuple[int, int]], pixels: int) -> None:
    """Refuse a TIFF whose parts are JPEGs of too many scans.

    Args:
        content: The file.
        parts: Place and bytes of each part; several may be the same, but not overlap.
        pixels: The pixels of a part.

    Raises:
        UnfitPictureError: If so.
    """
    counts = Counter(parts)
    scans, read = 0, 0
    for (place, size), times in counts.items():
        scans += times * content.count(_SCANS, place, place + size)
        read += size
        if scans * pixels > _MOST_SCANNED or read > _TIMES * len(content):
            raise UnfitPictureError(
                f"has {scans:,} scans of {pixels / 1e6:,.1f} million pixels, or its parts overlap",
                "save it again, or take it out",
            )


def check_scans(content: bytes, pixels: int) -> None:
    """Refuse a JPEG with too many scans, each of which goes over all pixels.

    Raises:
        UnfitPictureError: If so.
    """
    if content.count(_SCANS) * pixels <= _MOST_SCANNED:
        return
    scans = sum(kind == _SCAN for kind, _ in jpeg_segments(content))
    if scans * pixels > _MOST_SCANNED:
        raise UnfitPictureError(
            f"has {scans:,} scans of {pixels / 1e6:,.0f} million pixels",
            "save it again, or take it out",
        )


def jpeg_segments(content: bytes) -> Iterator[tuple[int, int]]:
    """Yield the kind of each segment of a JPEG and where its content begins, up to its end.

    What may follow its end, such as a phone's video, is no part of it.
    """
    place = 2
    while (found := _MARKER.search(content, place)) and content[found.end() - 1] != _END:
        kind, place = content[found.end() - 1], found.end()
        yield kind, place + 2
        if kind not in _ALONE:
            place += int.from_bytes(content[place : place + 2])


def check_pixels(pixels: int, most: int, stored: float = PIXEL_BYTES) -> None:
    """Refuse a picture of too many pixels, which count for more if stored in many bytes."""
    if pixels <= most < (counted := pixels * stored / PIXEL_BYTES):
        raise UnfitPictureError(
            f"has {pixels / 1e6:,.0f} million pixels of {stored:g} bytes, which count as "
            f"{counted / 1e6:,.0f} million",
            f"make it smaller, or raise data.max_pixels={most}",
        )
    if pixels > most:
        raise UnfitPictureError(
            f"has {pixels / 1e6:,.0f} million pixels",
            f"make it smaller, or raise data.max_pixels={most}",
        )


def seek_frame(image: Image.Image, content: bytes, frame: int | None, max_pixels: int) -> None:
    """Go to the frame that `choose_frame` chooses.

    Raises:
        UnfitPictureError: If that one has more pixels, or takes far more to decode than these.
    """
    image.seek(choose_frame(_frames(image, frame), frame, image.format))
    check_pixels(image.width * image.height, max_pixels)
    check_effort(image, content)


def _frames(image: Image.Image, frame: int | None) -> int:
    """Return a picture's number of frames; of a TIFF up to 100, or those up to the one asked for.

    Pillow looks each of a TIFF's directories up among all those before it.
    """
    if image.format != "TIFF":
        return getattr(image, "n_frames", 1)
    most = max(_COUNTED, (frame or 0) + 1)
    for number in range(1, most):
        try:
            image.seek(number)
        except EOFError:
            most = number
            break
    image.seek(0)
    return most


def choose_frame(frames: int, frame: int | None, kind: str | None = None) -> int:
    """Return the number of the frame to use.

    Raises:
        UnfitPictureError: If there are several and none is asked for, or too few.
    """
    if frames == 1 or kind in _ONE_SHOT:
        return 0
    if frame is None:
        raise UnfitPictureError(
            f"holds {frames} frames",
            "set data.frame=0 to take the first of each, or save frames as pictures of their own",
        )
    if frame >= frames:
        raise UnfitPictureError(
            f"holds {frames} frames, counted from 0", f"lower data.frame={frame}, or take it out"
        )
    return frame


def orientation(image: Image.Image) -> int:
    """Return a picture's EXIF orientation, 1..8; 1 if there is none, or it is damaged."""
    try:
        found = image.getexif().get(_ORIENTATION, _UPRIGHT)
    except Exception:  # noqa: BLE001 - damaged EXIF raises of all kinds, and the picture is whole
        return _UPRIGHT
    return found if found in _TURNS else _UPRIGHT


def turned(pixels: NDArray[Any], held: int) -> NDArray[Any]:
    """Return pixels (height, width, …) turned upright by the EXIF orientation."""
    if held == _UPRIGHT:
        return pixels
    quarters, mirrored = _TURNS[held]
    upright = np.rot90(pixels, quarters)
    return upright[:, ::-1] if mirrored else upright


def _heif(prefix: bytes) -> tuple[str, ...]:
    """Return Pillow's name of HEIC if a file begins as one, and register the format."""
    if prefix[4:8] != b"ftyp" or prefix[8:12] not in _HEIF_BRANDS:
        return ()
    if "HEIF" not in Image.OPEN:
        try:
            from pillow_heif import register_heif_opener
        except ImportError as error:
            raise DataError(
                "HEIC pictures are read by pillow-heif, which is not installed; pip install "
                "'coterie[heif]'."
            ) from error
        register_heif_opener()
    return ("HEIF",)
