"""Decodes one picture, from a file or from bytes, into 8-bit channels.

Pictures of another mode are converted, and stand as their EXIF orientation says. Transparent pixels
get a ground. Levels of more than 8 bits are scaled, as `coterie.datamodules.grey_levels` says.
Grey pictures of several channels keep them, and the mode `all` keeps every channel of any picture.
"""

import os
from dataclasses import dataclass, replace
from io import UnsupportedOperation
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from coterie.config.regular_files import open_regular
from coterie.datamodules.decoding_memory import (
    Room,
    bytes_of,
    bytes_of_rows,
    bytes_to_resize,
    tiles,
)
from coterie.datamodules.dicom import Levels, is_dicom, read_dicom
from coterie.datamodules.grey_levels import (
    deep_levels,
    eight_bits,
    tiff_bits,
    tiff_tag,
    white_is_zero,
)
from coterie.datamodules.many_channels import is_tiff, read_tiff
from coterie.datamodules.picture_files import (
    MAX_PIXELS,
    UnfitPictureError,
    open_picture,
    orientation,
    seek_frame,
    turned,
)
from coterie.datamodules.pillow_limit import pillow_limit
from coterie.datamodules.resize import Fit, Size, fit_images
from coterie.datamodules.stored import FilePart
from coterie.errors import DataError, reason

Mode = Literal["L", "RGB", "all"]
Ground = Literal["black", "white"]


@dataclass(frozen=True)
class Levelled:
    """A picture with its own levels, which override the configured ones.

    Attributes:
        levels: Its levels; None for what the file states.
    """

    picture: "Picture"
    levels: Levels | None


Picture = Path | bytes | FilePart | Levelled

ALPHA = frozenset({"RGBA", "RGBa", "LA", "La", "PA"})
TRANSPARENT = " with a transparent colour"
_COPIES = 2
"""Bytes that each channel takes besides the picture: in an array, and in another order."""
_KEPT = frozenset({"L", "LA", "RGB", "RGBA", "RGBX", "CMYK"})
"""Modes that `mode=all` keeps; others become RGB."""
_MOST_BYTES = 1 << 31
"""Bytes of a picture's file, at most."""
_CHANNELS = 277
"""Tag of TIFF."""
_CLEAR = 16
"""Alpha below which a pixel counts as transparent."""
_LEVELS = {"black": 0, "white": 255}
REMEDY = "fetch it again, or take it out"
_SMALLER = "make it smaller, or take it out"


@dataclass(frozen=True)
class PixelFormat:
    """The form to which pictures are brought.

    Attributes:
        mode: "L" for one channel, "RGB" for three, to which other pictures are converted; "all"
            keeps every channel.
        size: The side, or (height, width), that each picture is resized to, bilinearly and with
            antialiasing; None leaves them as they are.
        fit: How a picture of another shape comes to `size`; None squashes it, as a default.
        levels: Levels of more than 8 bits, or of DICOM, that become black and white; by default
            those that the file states.
        background: What transparent pixels become; by default white in pictures that are
            transparent for the most part, as icons are, and black in others.
        exif: Whether pictures stand as their EXIF orientation says.
        frame: Which frame to take of pictures of several, from 0; None refuses these.
        max_pixels: Pixels of a picture, at most.
    """

    mode: Mode = "RGB"
    size: Size | None = None
    fit: Fit | None = None
    levels: Levels | None = None
    background: Ground | None = None
    exif: bool = True
    frame: int | None = None
    max_pixels: int = MAX_PIXELS


class UnreadablePictureError(DataError):
    """A picture that cannot be read.

    Attributes:
        reason: What is wrong with it, such as "is empty (0 bytes)".
        told: Both, as a sentence goes.
        remedy: What to do about it.
    """

    def __init__(self, name: str, reason: str, remedy: str = REMEDY) -> None:
        self.told = f"{name}{'' if reason.startswith(':') else ' '}{reason}"
        super().__init__(f"{self.told}; {remedy}.")
        self.name, self.reason, self.remedy = name, reason.removeprefix(": "), remedy


class Decoded(NamedTuple):
    """A decoded picture.

    Attributes:
        pixels: uint8 (channels, height, width).
        found: The mode it had.
        shape: The height and width it had.
        dark: Whether it is of 16 bits, without a statement that they are fewer, and uses 12.
        held: Its EXIF orientation, if it was turned by it; else 1.
        ground: What its transparent pixels have become; "" without.
    """

    pixels: NDArray[np.uint8]
    found: str
    shape: tuple[int, int]
    dark: bool = False
    held: int = 1
    ground: str = ""


def read_content(picture: Picture, name: str) -> bytes:
    """Return a picture's bytes.

    Raises:
        UnreadablePictureError: If it is missing, no regular file, empty, too large, or cannot be
            opened.
    """
    while isinstance(picture, Levelled):
        picture = picture.picture
    try:
        if isinstance(picture, Path):
            with open_regular(picture) as file:
                _check_bytes(os.fstat(file.fileno()).st_size, name)
                content = file.read()
        else:
            _check_bytes(getattr(picture, "size", 0), name)  # of a part of a file
            content = picture if isinstance(picture, bytes) else picture.read_bytes()
    except FileNotFoundError as error:
        remedy = "put it there, or take its entry out"
        raise UnreadablePictureError(name, ": there is no such file", remedy) from error
    except UnsupportedOperation as error:
        raise UnreadablePictureError(name, "is not a regular file", "take it out") from error
    except (OSError, ValueError) as error:
        reason = f"cannot be opened ({getattr(error, 'strerror', None) or error})"
        raise UnreadablePictureError(name, reason) from error
    if not content:
        raise UnreadablePictureError(name, "is empty (0 bytes)")
    return content


def _check_bytes(size: int, name: str) -> None:
    """Refuse a file that is larger than any picture; it may have holes, and take no room on disk.

    Raises:
        UnreadablePictureError: If so.
    """
    if size > _MOST_BYTES:
        raise UnreadablePictureError(name, f"has more than {_MOST_BYTES >> 30} GiB", _SMALLER)


def decode(picture: Picture, name: str, pixel_format: PixelFormat) -> Decoded:
    """Decode one picture.

    Args:
        picture: A file, or the bytes of one.
        name: Its name in errors.
        pixel_format: What to bring it to.

    Raises:
        UnreadablePictureError: If it is missing, empty or corrupt.
    """
    if isinstance(picture, Levelled):
        pixel_format, picture = replace(pixel_format, levels=picture.levels), picture.picture
    content = read_content(picture, name)
    with Room() as room, pillow_limit(pixel_format.max_pixels):
        found = _guarded(content, name, pixel_format, room)
        if not found.pixels.size:
            raise UnreadablePictureError(name, "is a picture without pixels")
        return found._replace(pixels=_fitted(found.pixels, name, pixel_format, room))


def _fitted(
    pixels: NDArray[np.uint8], name: str, pixel_format: PixelFormat, room: Room
) -> NDArray[np.uint8]:
    """Bring a picture's pixels to the size of the format, if it has one."""
    size = pixel_format.size
    if size is None:
        return np.ascontiguousarray(pixels)
    try:
        room.take(bytes_to_resize(pixels.shape, size if isinstance(size, int) else size[1]))
    except UnfitPictureError as error:
        raise UnreadablePictureError(name, error.what, error.remedy) from error
    fitted: NDArray[np.uint8] = fit_images(pixels[None], size, pixel_format.fit or "squash")[0]
    return fitted


def level_range(
    picture: Picture, name: str, pixel_format: PixelFormat
) -> tuple[float, float, bool] | None:
    """Return the range of a deep picture's levels, and whether they are whole numbers.

    None for DICOM, and for pictures of 8 bits.

    Raises:
        UnreadablePictureError: If it is missing, empty or corrupt.
    """
    content = read_content(picture, name)
    if is_dicom(content) or name.lower().endswith((".dcm", ".dicom")):
        return None
    try:
        with Room() as room, pillow_limit(pixel_format.max_pixels):
            values = _stored_levels(content, pixel_format, room)
    except Exception as error:  # as in `_guarded`
        raise UnreadablePictureError(name, f"cannot be read ({reason(error)})") from error
    if values is None or not values.size:
        return None
    return float(values.min()), float(values.max()), values.dtype.kind in "iu"


def _stored_levels(content: bytes, pixel_format: PixelFormat, room: Room) -> NDArray[Any] | None:
    """Return a picture's numbers as stored; None if they have 8 bits."""
    try:
        image = open_picture(content, max_pixels=pixel_format.max_pixels)
    except UnidentifiedImageError:
        frame, most = pixel_format.frame, pixel_format.max_pixels
        return read_tiff(content, frame, most, room) if is_tiff(content) else None
    if is_tiff(content) and _is_partial(image, pixel_format.mode):
        return read_tiff(content, pixel_format.frame, pixel_format.max_pixels, room)
    if not image.mode.startswith(("I", "F")):
        return None
    seek_frame(image, content, pixel_format.frame, pixel_format.max_pixels)
    room.take(2 * image.width * image.height * bytes_of(image))
    image.load()
    return np.asarray(deep_levels(image, content, (0, 1))[0])


def _guarded(content: bytes, name: str, pixel_format: PixelFormat, room: Room) -> Decoded:
    """Decode, and name the picture in any error."""
    try:
        return _decoded(content, name, pixel_format, room)
    except DataError:  # a package is not installed
        raise
    except UnidentifiedImageError as error:
        raise UnreadablePictureError(name, "is not a readable picture") from error
    except UnfitPictureError as error:
        raise UnreadablePictureError(name, error.what, error.remedy) from error
    except MemoryError as error:
        raise UnreadablePictureError(name, "needs more memory than there is", _SMALLER) from error
    except Exception as error:  # decoders raise errors of all kinds
        why = f"is a picture that cannot be read ({reason(error)})"
        raise UnreadablePictureError(name, why) from error


def _decoded(content: bytes, name: str, pixel_format: PixelFormat, room: Room) -> Decoded:
    """Decode to channels, without a change of size."""
    if is_dicom(content) or name.lower().endswith((".dcm", ".dicom")):
        levels, frame, most = pixel_format.levels, pixel_format.frame, pixel_format.max_pixels
        shown = Image.fromarray(read_dicom(content, levels, frame, most, room))
        return _as_mode(shown, pixel_format, shown.mode)
    try:
        image = open_picture(content, max_pixels=pixel_format.max_pixels)
    except UnidentifiedImageError:
        if not is_tiff(content):
            raise
        return _many(content, pixel_format, room)
    if is_tiff(content) and _is_partial(image, pixel_format.mode):
        return _many(content, pixel_format, room)
    seek_frame(image, content, pixel_format.frame, pixel_format.max_pixels)
    given = 1 if pixel_format.mode == "L" else 3
    pixel = bytes_of(image) + _COPIES * given
    room.take(image.width * image.height * pixel + bytes_of_rows(image))
    held = orientation(image) if pixel_format.exif else 1
    image.load()
    found = image.mode + (TRANSPARENT if "transparency" in image.info else "")
    decoded = (
        _deep(image, content, pixel_format, found)
        if image.mode.startswith(("I", "F"))
        else _as_mode(image, pixel_format, found)
    )
    if held == 1 or image.format == "TIFF":  # which Pillow turns itself
        return decoded._replace(held=held)
    upright = turned(decoded.pixels.transpose(1, 2, 0), held).transpose(2, 0, 1)
    return decoded._replace(pixels=upright, shape=upright.shape[1:], held=held)


def _is_partial(image: Image.Image, mode: Mode) -> bool:
    """Return whether Pillow would drop part of a TIFF: bits beyond 8, or channels."""
    known, channels = len(image.getbands()), tiff_tag(image, _CHANNELS, 1)
    return (known > 1 and tiff_bits(image) > 8) or (
        channels > known and (known == 1 or mode == "all")
    )


def _many(content: bytes, pixel_format: PixelFormat, room: Room) -> Decoded:
    """Return a TIFF of many channels, or of several channels of more than 8 bits."""
    values = read_tiff(content, pixel_format.frame, pixel_format.max_pixels, room)
    bits = 8 * values.dtype.itemsize
    pixels, dark = eight_bits(values, bits, pixel_format.levels)
    channels = pixels.shape[2]
    if channels in (1, 3) or (channels == 4 and pixel_format.mode != "all"):
        shown = Image.fromarray(pixels[..., 0] if channels == 1 else pixels[..., :3])
        return _as_mode(shown, pixel_format, f"{channels} channels of {bits} bits")._replace(
            dark=dark
        )
    found, shape = f"{channels} channels", (pixels.shape[0], pixels.shape[1])
    return Decoded(pixels.transpose(2, 0, 1), found, shape, dark)


def _deep(image: Image.Image, content: bytes, pixel_format: PixelFormat, found: str) -> Decoded:
    """Return a grey picture of more than 8 bits."""
    values, bits = deep_levels(image, content, pixel_format.levels)
    grey, dark = eight_bits(values, bits, pixel_format.levels)
    if white_is_zero(image):
        np.subtract(255, grey, out=grey)
    ground: Ground | Literal[""] = ""
    if "transparency" in image.info:
        # Compared before scaling: levels that differ in 16 bits may be equal in 8.
        clear = values == image.info["transparency"]
        ground = _ground(float(clear.mean()), pixel_format)
        grey[clear] = _LEVELS[ground]
    return _as_mode(Image.fromarray(grey), pixel_format, found)._replace(dark=dark, ground=ground)


def _as_mode(image: Image.Image, pixel_format: PixelFormat, found: str) -> Decoded:
    """Convert to a mode; Pillow's `convert` alone would drop alpha."""
    clear = image.mode in ALPHA or "transparency" in image.info
    ground: Ground | Literal[""] = ""
    mode: str = pixel_format.mode
    if mode == "all":
        mode = "RGBA" if clear else image.mode if image.mode in _KEPT else "RGB"
    elif clear and (share := _clear_share(image)) is not None:
        ground = _ground(share, pixel_format)
    channels = Image.getmodebands(mode)
    pixels = np.empty((channels, image.height, image.width), np.uint8)
    for left, top, right, bottom in tiles(*image.size):
        part = np.asarray(_converted(image.crop((left, top, right, bottom)), mode, ground))
        shown = part[None] if part.ndim == 2 else part.transpose(2, 0, 1)
        pixels[:, top:bottom, left:right] = shown
    return Decoded(pixels, found, image.size[::-1], ground=ground)


def _clear_share(image: Image.Image) -> float | None:
    """Return the share of transparent pixels; None if the picture is opaque throughout."""
    count, least = 0, 255
    for box in tiles(*image.size):
        alpha = np.asarray(image.crop(box).convert("RGBA").getchannel("A"))
        count += int(np.count_nonzero(alpha < _CLEAR))
        least = min(least, int(alpha.min()))
    return None if least == 255 else count / max(1, image.width * image.height)


def _converted(part: Image.Image, mode: str, ground: str) -> Image.Image:
    """Convert a part of a picture, on a plain background if it has transparent pixels."""
    if ground:
        level = _LEVELS[ground]
        opaque = Image.new("RGBA", part.size, (level, level, level, 255))
        opaque.alpha_composite(part.convert("RGBA"))
        part = opaque.convert("RGB")
    return part if part.mode == mode else part.convert(mode)


def _ground(share: float, pixel_format: PixelFormat) -> Ground:
    """Return the colour for transparent pixels of a picture with this share of them."""
    return pixel_format.background or ("white" if share > 0.5 else "black")
