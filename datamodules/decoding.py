"""One picture, as a file or as bytes, decoded into 8-bit channels.

Pictures of another mode are converted. Transparent pixels are composited on black. Grey levels of
more than 8 bits are scaled by the number of bits that the file states, v·255/(2^bits - 1), where
Pillow would clip them at 255, or as `Form.levels` says. Orientation tags are ignored, as in
torchvision.
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO, UnsupportedOperation
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from coterie.config.regular_files import open_regular
from coterie.datamodules.dicom import Levels, is_dicom, read_dicom, stretch
from coterie.datamodules.resize import Fit, Size, fit_images
from coterie.errors import DataError

Mode = Literal["L", "RGB"]


class StoredPicture(Protocol):
    """A picture that is read when it is asked for, such as one in a tar file."""

    def read_bytes(self) -> bytes:
        """Its bytes."""


Picture = Path | bytes | StoredPicture

ALPHA = frozenset({"RGBA", "RGBa", "LA", "La", "PA"})
TRANSPARENT = " with a transparent colour"
_TWELVE_BITS = 4095
_GAP = rb"(?:\s|#[^\n]*\n)+"
_PGM = re.compile(rb"P[25]" + _GAP + rb"\d+" + _GAP + rb"\d+" + _GAP + rb"(\d+)")
"""The start of a PGM: width, height and largest level, between comments."""
_TIFF_BITS, _TIFF_PHOTOMETRIC, _WHITE_IS_ZERO = 258, 262, 0
_BROKEN = (
    OSError,
    EOFError,
    SyntaxError,
    ValueError,
    struct.error,
    Image.DecompressionBombError,
)
"""Pillow's errors for corrupt, truncated or far too large pictures."""


@dataclass(frozen=True)
class Form:
    """What pictures are brought to.

    Attributes:
        mode: "L" for one channel, "RGB" for three; other pictures are converted.
        size: The side, or (height, width), that each picture is resized to, bilinearly and with
            antialiasing; None leaves them as they are.
        fit: How a picture of another shape comes to `size`; None squashes it, as a default.
        levels: Grey levels of more than 8 bits, or of DICOM, that become black and white; by
            default those that the file states.
    """

    mode: Mode = "RGB"
    size: Size | None = None
    fit: Fit | None = None
    levels: Levels | None = None


class UnreadablePictureError(DataError):
    """A picture that cannot be read.

    Attributes:
        name: The picture.
        reason: What is wrong with it, such as "is empty (0 bytes)".
        told: Both, as a sentence goes.
    """

    def __init__(
        self, name: str, reason: str, remedy: str = "fetch it again, or take it out"
    ) -> None:
        self.told = f"{name}{'' if reason.startswith(':') else ' '}{reason}"
        super().__init__(f"{self.told}; {remedy}.")
        self.name, self.reason = name, reason.removeprefix(": ")


class Decoded(NamedTuple):
    """A decoded picture.

    Attributes:
        pixels: uint8 (channels, height, width).
        found: The mode it had.
        shape: The height and width it had.
        dark: Whether it is of 16 bits, without a statement that they are fewer, and uses 12.
    """

    pixels: NDArray[np.uint8]
    found: str
    shape: tuple[int, int]
    dark: bool


def read_content(picture: Picture, name: str) -> bytes:
    """A picture's bytes.

    Raises:
        UnreadablePictureError: If it is missing, no regular file, empty, or cannot be opened.
    """
    try:
        if isinstance(picture, Path):
            with open_regular(picture) as file:
                content = file.read()
        else:
            content = picture if isinstance(picture, bytes) else picture.read_bytes()
    except FileNotFoundError as error:
        remedy = "put it there, or take its entry out"
        raise UnreadablePictureError(name, ": there is no such file", remedy) from error
    except UnsupportedOperation as error:
        raise UnreadablePictureError(name, "is no regular file", "take it out") from error
    except (OSError, ValueError) as error:
        reason = f"cannot be opened ({getattr(error, 'strerror', None) or error})"
        raise UnreadablePictureError(name, reason) from error
    if not content:
        raise UnreadablePictureError(name, "is empty (0 bytes)")
    return content


def decode(picture: Picture, name: str, form: Form) -> Decoded:
    """Decode one picture.

    Args:
        picture: A file, or the bytes of one.
        name: Its name in errors.
        form: What to bring it to.

    Raises:
        UnreadablePictureError: If it is missing, empty or corrupt.
    """
    content = read_content(picture, name)
    try:
        image, found, dark = _open(content, name, form.levels)
        pixels = np.array(_convert(image, form.mode))
    except UnidentifiedImageError as error:
        raise UnreadablePictureError(name, "is no picture that can be read") from error
    except _BROKEN as error:
        reason = f"is a picture that cannot be read ({error})"
        raise UnreadablePictureError(name, reason) from error
    if not pixels.size:
        raise UnreadablePictureError(name, "is a picture without pixels")
    pixels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    shape = (pixels.shape[1], pixels.shape[2])
    if form.size is not None:
        pixels = fit_images(pixels[None], form.size, form.fit or "squash")[0]
    return Decoded(pixels, found, shape, dark)


def _open(content: bytes, name: str, levels: Levels | None) -> tuple[Image.Image, str, bool]:
    """Return a picture of 8 bits, the mode it had, and whether it is dark."""
    if is_dicom(content) or name.lower().endswith((".dcm", ".dicom")):
        shown = Image.fromarray(read_dicom(content, levels))
        return shown, shown.mode, False
    image: Image.Image = Image.open(BytesIO(content))
    image.load()
    found = image.mode + (TRANSPARENT if "transparency" in image.info else "")
    if not image.mode.startswith(("I", "F")):
        return image, found, False
    values = np.asarray(image)
    # To native order: NumPy below 2.3 crashes where it compares other levels with -1.
    values = values.astype(values.dtype.newbyteorder("="), copy=False)
    bits = _stated_bits(image, content)
    if values.max(initial=0) >= 2**bits:
        bits = 16  # the samples are scaled to 16 bits, as PNG wants it
    if levels is not None and image.format == "PPM":
        values = _unscaled(values, content)
    dark = levels is None and bits == 16 and 0 < values.max(initial=0) <= _TWELVE_BITS
    # Compare before scaling: levels that differ in 16 bits may be equal in 8.
    seen = values != image.info.get("transparency", -1)
    grey = _eight_bits(values, bits) if levels is None else stretch(values, *levels)
    if _white_is_zero(image):
        grey = 255 - grey
    return Image.fromarray(grey * seen), found, bool(dark)


def _convert(image: Image.Image, mode: Mode) -> Image.Image:
    """Convert to a mode; Pillow's `convert` alone would drop alpha."""
    if image.mode == mode and "transparency" not in image.info:
        return image
    if image.mode in ALPHA or "transparency" in image.info:
        opaque = Image.new("RGBA", image.size, (0, 0, 0, 255))
        opaque.alpha_composite(image.convert("RGBA"))
        image = opaque.convert("RGB")
    return image.convert(mode)


def _eight_bits(levels: NDArray[np.integer], bits: int) -> NDArray[np.uint8]:
    """Scale grey levels from 0..2^bits - 1 to 0..255, rounded."""
    if levels.dtype.kind == "f":
        raise ValueError("it holds decimal numbers; set data.levels, or save it with 8 or 16 bits")
    if levels.min() < 0 or levels.max() > 65535:
        raise ValueError(
            "it holds numbers beyond 16 bits; set data.levels, or save it with 8 or 16 bits"
        )
    if bits == 16:  # 65535 = 257·255, so this is v/257 rounded, without floats
        return ((levels.astype(np.int64) + 128) // 257).astype(np.uint8)
    return stretch(levels, 0, 2**bits - 1)


def _stated_bits(image: Image.Image, content: bytes) -> int:
    """The number of bits of a grey level, as the file states it: 9 to 16."""
    stated = 16
    if image.format == "TIFF":
        stated = int(_tiff_tag(image, _TIFF_BITS, 16))
    elif image.format == "PNG":
        stated = next((chunk[0] for kind, chunk in _png_chunks(content) if kind == b"sBIT"), 16)
    return stated if 8 < stated < 16 else 16


def _unscaled(values: NDArray[np.integer], content: bytes) -> NDArray[np.integer]:
    """A PGM's levels as they are in the file, which Pillow scales to 16 bits."""
    header = _PGM.match(content)
    largest = 65535 if header is None else int(header[1])
    found: NDArray[np.integer] = np.rint(values * (largest / 65535)).astype(np.int64)
    return found


def _white_is_zero(image: Image.Image) -> bool:
    """Whether a TIFF's levels count from white, which Pillow minds up to 8 bits only."""
    return image.format == "TIFF" and _tiff_tag(image, _TIFF_PHOTOMETRIC, 1) == _WHITE_IS_ZERO


def _tiff_tag(image: Any, tag: int, default: int) -> int:
    value = image.tag_v2.get(tag, default)
    return int(value[0] if isinstance(value, tuple) else value)


def _png_chunks(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The chunks of a PNG before its pixels."""
    place = 8
    while place + 8 <= len(content):
        length, kind = struct.unpack_from(">I4s", content, place)
        if kind == b"IDAT":
            return
        yield kind, content[place + 8 : place + 8 + length]
        place += length + 12
