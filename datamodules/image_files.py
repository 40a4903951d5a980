"""Pictures, as files or as bytes, decoded into one array.

Pictures of another mode are converted, with one warning for all of them. Transparent pixels are
composited on black. 16-bit grey levels are scaled to 8 bits, v·255/65535, where Pillow would clip
them at 255. Orientation tags are ignored, as in torchvision.
"""

import logging
import os
import struct
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from coterie.errors import DataError
from datamodules.resize import Size, resize_images

Mode = Literal["L", "RGB"]
Picture = Path | bytes
EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Extensions of pictures, as in torchvision's ImageFolder."""

_CHUNK = 64
"""Pictures that a thread decodes at a time."""
_ALPHA = frozenset({"RGBA", "RGBa", "LA", "La", "PA"})
_TRANSPARENT = " with a transparent colour"
_BROKEN = (
    OSError,
    EOFError,
    SyntaxError,
    ValueError,
    struct.error,
    Image.DecompressionBombError,
)
"""Pillow's errors for corrupt, truncated or far too large pictures."""

_logger = logging.getLogger(__name__)


def find_images(folder: Path) -> list[Path]:
    """List the visible pictures in a folder and the folders below it, sorted.

    Raises:
        DataError: If the folder is missing or holds none.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder; set data.path to one with pictures.")
    found = []
    for parent, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        visible = (name for name in names if not name.startswith("."))
        found += [Path(parent, name) for name in visible if name.lower().endswith(EXTENSIONS)]
    if not found:
        raise DataError(
            f"{folder}: there are no pictures ({', '.join(EXTENSIONS)}) in it; put some there, or "
            "take the folder out."
        )
    return sorted(found)


def read_images(
    pictures: Sequence[Picture],
    names: Sequence[str],
    *,
    mode: Mode,
    size: Size | None = None,
) -> NDArray[np.uint8]:
    """Decode pictures in threads, in order.

    Args:
        pictures: Files, or the bytes of files.
        names: Each picture's name in errors.
        mode: "L" for one channel, "RGB" for three; other pictures are converted.
        size: Resize each picture to this side, or (height, width), bilinearly and with
            antialiasing. By default pictures are not resized and must have one size.

    Returns:
        uint8 (n, channels, height, width), contiguous.

    Raises:
        DataError: If a picture is missing, empty or corrupt, or if sizes differ without `size`.
    """
    decoded = decode_images(pictures, names, mode=mode, size=size)
    warn_converted(decoded.converted, len(pictures), mode)
    return decoded.images


class Decoded(NamedTuple):
    """Decoded pictures, and counts of their conversions.

    Attributes:
        images: uint8 (n, channels, height, width).
        converted: Number of pictures by other mode.
        resized: Number of pictures of another size.
    """

    images: NDArray[np.uint8]
    converted: Counter[str]
    resized: int


def decode_images(
    pictures: Sequence[Picture], names: Sequence[str], *, mode: Mode, size: Size | None = None
) -> Decoded:
    """`read_images` without its warning."""
    if not pictures:
        return Decoded(np.empty((0, len(mode), 0, 0), dtype=np.uint8), Counter(), 0)
    first, _, _ = _decode(pictures[0], names[0], mode, size)
    images = np.empty((len(pictures), *first.shape), dtype=np.uint8)

    def decode_chunk(start: int) -> tuple[Counter[str], int]:
        converted: Counter[str] = Counter()
        resized = 0
        for row in range(start, min(start + _CHUNK, len(pictures))):
            pixels, found, other_size = _decode(pictures[row], names[row], mode, size)
            if pixels.shape != first.shape:
                raise DataError(
                    f"{names[0]} has {_extent(first)} pixels, but {names[row]} has "
                    f"{_extent(pixels)}; set data.size to resize all pictures to one size."
                )
            images[row] = pixels
            converted[found] += found != mode
            resized += other_size
        return converted, resized

    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        chunks = list(pool.map(decode_chunk, range(0, len(pictures), _CHUNK)))
    modes, resized = zip(*chunks, strict=True)
    return Decoded(images, sum(modes, Counter()), sum(resized))


def warn_converted(converted: Counter[str], count: int, mode: Mode) -> None:
    """Warn once about the pictures of another mode among `count`, if any."""
    if not converted:
        return
    modes = ", ".join(f"{number} from {name}" for name, number in converted.most_common())
    alpha = any(name in _ALPHA or name.endswith(_TRANSPARENT) for name in converted)
    black = "; transparent pixels become black" if alpha else ""
    _logger.warning(
        "%d of %d pictures were converted to %s (%s)%s.",
        converted.total(),
        count,
        mode,
        modes,
        black,
    )


def _decode(
    picture: Picture, name: str, mode: Mode, size: Size | None
) -> tuple[NDArray[np.uint8], str, bool]:
    """Return a picture's pixels (channels, height, width), former mode, and whether resized."""
    if isinstance(picture, Path) and not picture.is_file():
        raise DataError(f"{name}: there is no such file; put it there, or take its entry out.")
    if not (picture.stat().st_size if isinstance(picture, Path) else picture):
        raise DataError(f"{name} is empty (0 bytes); fetch it again, or take it out.")
    try:
        with Image.open(picture if isinstance(picture, Path) else BytesIO(picture)) as image:
            found = image.mode + (_TRANSPARENT if "transparency" in image.info else "")
            pixels = np.array(_convert(image, mode))
    except UnidentifiedImageError as error:
        raise DataError(
            f"{name} is no picture that can be read; fetch it again, or take it out."
        ) from error
    except _BROKEN as error:
        raise DataError(
            f"{name} is a picture that cannot be read ({error}); fetch it again, or take it out."
        ) from error
    if not pixels.size:
        raise DataError(f"{name} is a picture without pixels; fetch it again, or take it out.")
    pixels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    wanted = pixels if size is None else resize_images(pixels[None], size)[0]
    return wanted, found, wanted.shape != pixels.shape


def _convert(image: Image.Image, mode: Mode) -> Image.Image:
    """Convert to a mode; Pillow's `convert` alone would clip 16 bits and drop alpha."""
    if image.mode == mode and "transparency" not in image.info:
        return image
    if image.mode.startswith("I"):
        levels = np.asarray(image)
        # Compare before scaling: levels that differ in 16 bits may be equal in 8.
        seen = levels != image.info.get("transparency", -1)
        image = Image.fromarray(_eight_bits(levels) * seen)
    elif image.mode in _ALPHA or "transparency" in image.info:
        opaque = Image.new("RGBA", image.size, (0, 0, 0, 255))
        opaque.alpha_composite(image.convert("RGBA"))
        image = opaque.convert("RGB")
    elif image.mode == "F":
        raise ValueError("it holds decimal numbers; save it with 8 or 16 bits")
    return image.convert(mode)


def _eight_bits(levels: NDArray[np.integer]) -> NDArray[np.uint8]:
    """Scale grey levels from 0..65535 to 0..255, rounded."""
    if levels.min() < 0 or levels.max() > 65535:
        raise ValueError("it holds numbers beyond 16 bits; save it with 8 or 16 bits")
    # 65535 = 257·255, so this is v/257 rounded, without floats.
    return ((levels.astype(np.int64) + 128) // 257).astype(np.uint8)


def _extent(pixels: NDArray[np.uint8]) -> str:
    return f"{pixels.shape[1]}×{pixels.shape[2]}"
