"""Reads every sample of a source once: whether it is readable, its size, mode and content."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.datamodules.decoding import (
    Decoded,
    Levelled,
    Picture,
    PixelFormat,
    UnreadablePictureError,
    decode,
    read_content,
)
from coterie.datamodules.image_files import Tally
from coterie.datamodules.source import Source

BLOCK = 256
"""Samples in memory at a time."""
SQUARE = PixelFormat(mode="RGB", size=1)
"""A pixel format that shows which pictures are not square."""


class Looked(NamedTuple):
    """The findings on one sample.

    Attributes:
        row: Its row of the source.
        sample: A picture's bytes, an image uint8 (channels, height, width) or a vector float32
            (features,).
        shape: (height, width) of pictures and images, (features,) of vectors.
        mode: The mode of pictures and images, "" of vectors.
        tally: What becomes of a picture, for `SQUARE`.
        error: Why a picture cannot be read; its `sample` is then empty.
    """

    row: int
    name: str
    sample: bytes | NDArray[Any]
    shape: tuple[int, ...]
    mode: str
    tally: Tally
    error: UnreadablePictureError | None = None

    def digest(self) -> bytes:
        """Return a digest of the stored content."""
        sample = self.sample
        return sha256(sample if isinstance(sample, bytes) else sample.tobytes()).digest()


def look_at(source: Source) -> Iterator[Looked]:
    """Look at all samples of a source, in order; a block of them is in memory at a time."""
    pictures = source.pictures
    if pictures is None:
        yield from _arrays(source)
        return

    def look(row: int) -> Looked:
        return _look(row, pictures[row], source.names[row], source.pixel_format)

    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        for start in range(0, source.count, BLOCK):
            yield from pool.map(look, range(start, min(start + BLOCK, source.count)))


def _look(row: int, picture: Picture, name: str, pixel_format: PixelFormat) -> Looked:
    try:
        content = read_content(picture, name)
        read = replace(picture, picture=content) if isinstance(picture, Levelled) else content
        decoded = decode(read, name, replace(pixel_format, mode="RGB", size=None, fit=None))
    except UnreadablePictureError as error:
        return Looked(row, name, b"", (), "", Tally(), error)
    tally = Tally()
    tally.add(decoded, SQUARE)
    tally.plain = int(decoded.pixels.min() == decoded.pixels.max())
    return Looked(row, name, content, decoded.shape, decoded.found, tally)


def _arrays(source: Source) -> Iterator[Looked]:
    for start in range(0, source.count, BLOCK):
        rows = np.arange(start, min(start + BLOCK, source.count), dtype=np.int64)
        for row, sample in zip(rows.tolist(), source.read(rows), strict=True):
            name = source.names[row] if source.names else f"row {row}"
            if sample.ndim == 1:
                if not np.isfinite(sample).all():
                    error = UnreadablePictureError(name, "has NaN or infinite features")
                    yield Looked(row, name, b"", (), "", Tally(), error)
                    continue
                yield Looked(row, name, sample, sample.shape, "", Tally(count=1))
                continue
            mode = {1: "L", 3: "RGB"}.get(len(sample), f"{len(sample)} channels")
            tally = Tally()
            tally.add(Decoded(sample, mode, sample.shape[1:]), SQUARE)
            yield Looked(row, name, sample, sample.shape[1:], mode, tally)
