"""Decodes many pictures in threads; `decoding` handles each picture."""

import logging
import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.config.free_memory import free_memory
from coterie.datamodules.decoding import (
    REMEDY,
    Decoded,
    Picture,
    PixelFormat,
    UnreadablePictureError,
    decode,
)
from coterie.errors import DataError
from coterie.tracking.formatting import format_bytes

_CHUNK = 64
"""Pictures that a thread decodes at a time."""
_NAMED, _REMEDIES = 20, 3
"""Unreadable pictures that an error names."""
_DIGEST = 16
"""Bytes of a picture's digest."""
_OTHER_SHAPE = 1.05
"""Ratio of two aspect ratios from which shapes count as different."""

_logger = logging.getLogger(__name__)


@dataclass
class Tally:
    """Counts of conversions of pictures.

    Attributes:
        count: All pictures that could be read.
        converted: Number of pictures by another mode.
        resized: Number of pictures of another size.
        reshaped: Number of pictures of another shape, such as oblong ones for a square size.
        dark: Number of 16-bit pictures that seem to have 12 bits.
        turned: Number of pictures that were turned by their EXIF orientation.
        grounds: Number of pictures with transparent pixels, by what these have become.
        plain: Number of pictures of a single colour, where that was looked for.
    """

    count: int = 0
    converted: Counter[str] = field(default_factory=Counter)
    resized: int = 0
    reshaped: int = 0
    dark: int = 0
    turned: int = 0
    grounds: Counter[str] = field(default_factory=Counter)
    plain: int = 0

    def add(self, picture: Decoded, pixel_format: PixelFormat) -> None:
        """Count one picture."""
        self.count += 1
        wanted = {"L": 1, "RGB": 3}.get(pixel_format.mode, len(picture.pixels))
        if len(picture.pixels) == wanted:  # pictures of other channels have kept them
            self.converted[picture.found] += pixel_format.mode not in ("all", picture.found)
        self.dark += picture.dark
        self.turned += picture.held != 1
        if picture.ground:
            self.grounds[picture.ground] += 1
        if pixel_format.size is not None:
            size = (
                (pixel_format.size, pixel_format.size)
                if isinstance(pixel_format.size, int)
                else pixel_format.size
            )
            self.resized += picture.shape != size
            ratio = picture.shape[0] * size[1] / (picture.shape[1] * size[0])
            self.reshaped += max(ratio, 1 / ratio) >= _OTHER_SHAPE

    def merge(self, other: "Tally") -> None:
        """Count another tally's pictures too."""
        for name in (each.name for each in fields(self)):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def warn(self, pixel_format: PixelFormat) -> None:
        """Warn once about each kind of change that the user may not expect."""
        if self.converted.total():
            modes = ", ".join(f"{n} from {name}" for name, n in self.converted.most_common())
            _logger.warning(
                "%d of %d pictures were converted to %s (%s)%s.",
                *(
                    self.converted.total(),
                    self.count,
                    pixel_format.mode,
                    modes,
                    self._ground(pixel_format),
                ),
            )
        if self.reshaped and pixel_format.fit is None:
            _logger.warning(
                "%d of %d pictures have another shape than data.size and are squashed; set "
                "data.fit=crop or letterbox to keep their proportions, or squash to accept this.",
                *(self.reshaped, self.count),
            )
        if self.dark:
            _logger.warning(
                "%d of %d pictures have 16 bits but no level above 4095, and come out dark; if "
                "they have 12 bits, set data.levels=%s.",
                *(self.dark, self.count, self.lighter),
            )

    @property
    def lighter(self) -> str:
        """The value of `data.levels` that brightens dark pictures and leaves the others alone."""
        if self.dark == self.count:
            return "[0,4095]"
        return "auto, which measures each client's (data=client_folders, or a column of clients)"

    def _ground(self, pixel_format: PixelFormat) -> str:
        """Return what transparent pixels have become, as the end of a sentence."""
        if not self.grounds:
            return ""
        if len(self.grounds) < 2:
            return f"; transparent pixels become {next(iter(self.grounds))}"
        return (
            f"; transparent pixels become white in the {self.grounds['white']} that are mostly "
            "transparent, and black in others: data.background=white or black makes them alike"
        )


Keep = Callable[[int, Decoded], None]
"""Takes a row and its picture."""


class DecodedPictures(NamedTuple):
    """Decoded pictures, without those that cannot be read.

    Attributes:
        images: uint8 (n, channels, height, width), contiguous.
        bad: Row to the picture that cannot be read, ascending.
        tally: What happened to the others.
    """

    images: NDArray[np.uint8]
    bad: dict[int, UnreadablePictureError]
    tally: Tally


def decode_images(
    pictures: Sequence[Picture], names: Sequence[str], pixel_format: PixelFormat
) -> DecodedPictures:
    """Decode pictures in threads, in order.

    Args:
        pictures: Files, or the bytes of files.
        names: Each picture's name in errors.
        pixel_format: What to bring them to. Without a size they must have one.

    Raises:
        DataError: If sizes differ without `pixel_format.size`.
    """
    first, like = _first_readable(pictures, names, pixel_format)
    images = _room(len(pictures), like, pixel_format)

    def keep(row: int, picture: Decoded) -> None:
        if picture.pixels.shape != like.shape:
            raise DataError(_unlike(names[first], like, names[row], picture.pixels))
        images[row] = picture.pixels

    bad, tally = _decode_all(pictures, names, pixel_format, keep)
    if bad:  # move the readable ones together, in place
        good = [row for row in range(len(pictures)) if row not in bad]
        for place, row in enumerate(good):
            images[place] = images[row]
        images = images[: len(good)]
    return DecodedPictures(images, bad, tally)


def _room(count: int, like: NDArray[np.uint8], pixel_format: PixelFormat) -> NDArray[np.uint8]:
    """Allocate memory for pictures of one form."""
    needed, free = count * like.nbytes, free_memory()
    if needed <= free:
        return np.empty((count, *like.shape), dtype=np.uint8)
    size = (
        "a smaller data.size" if pixel_format.size is not None else "data.size to make them smaller"
    )
    raise DataError(
        f"{count:,} pictures of {_extent(like)} pixels and {len(like)} channels take "
        f"{format_bytes(needed)}, but this machine has {format_bytes(free)} free; set {size}, or "
        "data.stream=true to keep none in memory."
    )


def _unlike(first: str, like: NDArray[np.uint8], other: str, pixels: NDArray[np.uint8]) -> str:
    if len(like) != len(pixels):
        return (
            f"{first} has {len(like)} channels, but {other} has {len(pixels)}; make them alike, or "
            "take one kind out."
        )
    return (
        f"{first} has {_extent(like)} pixels, but {other} has {_extent(pixels)}; set data.size to "
        "resize all pictures to one size."
    )


def look_through(
    pictures: Sequence[Picture], names: Sequence[str], pixel_format: PixelFormat
) -> tuple[dict[int, UnreadablePictureError], Tally, NDArray[np.uint8]]:
    """Decode pictures in threads, without keeping them.

    Returns:
        Row to the picture that cannot be read, ascending; what happens to the others; and the
        `picture_digest` of each (n, 16).
    """
    each = np.zeros((len(pictures), _DIGEST), np.uint8)

    def note(row: int, picture: Decoded) -> None:
        each[row] = picture_digest(picture.pixels)

    bad, tally = _decode_all(pictures, names, pixel_format, note)
    return bad, tally, each


def picture_digest(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a digest (16,) of a picture (channels, height, width)."""
    pixels = np.ascontiguousarray(pixels)
    own = blake2b(repr(pixels.shape).encode(), digest_size=_DIGEST)
    own.update(pixels.data)
    return np.frombuffer(own.digest(), np.uint8)


def read_images(
    pictures: Sequence[Picture], names: Sequence[str], pixel_format: PixelFormat
) -> NDArray[np.uint8]:
    """Decode pictures of which none may be unreadable, as uint8 (n, channels, height, width).

    Raises:
        DataError: If a picture is missing, empty or corrupt, or sizes differ without
            `pixel_format.size`.
    """
    decoded = decode_images(pictures, names, pixel_format)
    refuse(list(decoded.bad.values()), len(pictures), "repair them or take them out")
    return decoded.images


def refuse(
    bad: Sequence[UnreadablePictureError], count: int, remedy: str, *, skip: str = ""
) -> None:
    """Raise an error about the unreadable pictures among `count`, if any.

    Args:
        bad: The errors of these pictures.
        count: Pictures in all.
        remedy: What to do, if there are several.
        skip: What would leave them out, such as data.on_error=skip, if others stay.

    Raises:
        DataError: It names the first 20.
    """
    skip = f", or set {skip}" if skip and len(bad) < count else ""
    if len(bad) == 1:
        raise DataError(f"{str(bad[0]).removesuffix('.')}{skip}.") from bad[0]
    if bad:
        own = dict.fromkeys(one.remedy for one in bad)
        keys = [each for each in own if "data." in each]  # which would read them
        alone = [*own] if len(own) == 1 and REMEDY not in own else []
        remedy = "; ".join(alone or [*keys[:_REMEDIES], remedy])
        shown = "; ".join(one.told for one in bad[:_NAMED])
        more = f"; and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
        raise DataError(
            f"{len(bad)} of {count} pictures cannot be read ({shown}{more}); {remedy}{skip}."
        )


def tell_skipped(bad: Sequence[UnreadablePictureError], count: int) -> None:
    """Warn about the unreadable pictures among `count` that were left out, if any."""
    if bad:
        _logger.warning(
            "%d of %d pictures cannot be read and are left out, the first because %s",
            *(len(bad), count, bad[0]),
        )


def _first_readable(
    pictures: Sequence[Picture], names: Sequence[str], pixel_format: PixelFormat
) -> tuple[int, NDArray[np.uint8]]:
    """Return the first readable picture: its row, and its pixels; empty if there is none."""
    for row, (picture, name) in enumerate(zip(pictures, names, strict=True)):
        try:
            return row, decode(picture, name, pixel_format).pixels
        except UnreadablePictureError:  # it is named with all others, later
            continue
    return 0, np.empty((1 if pixel_format.mode == "L" else 3, 0, 0), np.uint8)


def _decode_all(
    pictures: Sequence[Picture], names: Sequence[str], pixel_format: PixelFormat, keep: Keep
) -> tuple[dict[int, UnreadablePictureError], Tally]:
    def decode_chunk(start: int) -> tuple[dict[int, UnreadablePictureError], Tally]:
        bad: dict[int, UnreadablePictureError] = {}
        tally = Tally()
        for row in range(start, min(start + _CHUNK, len(pictures))):
            try:
                picture = decode(pictures[row], names[row], pixel_format)
            except UnreadablePictureError as error:
                bad[row] = error
                continue
            keep(row, picture)
            tally.add(picture, pixel_format)
        return bad, tally

    bad: dict[int, UnreadablePictureError] = {}
    tally = Tally()
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        for found, counted in pool.map(decode_chunk, range(0, len(pictures), _CHUNK)):
            bad |= found
            tally.merge(counted)
    return bad, tally


def _extent(pixels: NDArray[np.uint8]) -> str:
    return f"{pixels.shape[1]}×{pixels.shape[2]}"
