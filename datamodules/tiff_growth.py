"""Checks how far the compressed parts of a TIFF grow, since tifffile unpacks any length.

A part of 200 kB can hold gigabytes, also where the picture has a hundred pixels.
"""

import lzma
import zlib
from collections.abc import Iterable, Iterator

from coterie.config.growth import most_from

_STEP = 1 << 20
_DEFLATE, _LZMA = frozenset({8, 32946, 50013}), 34925
_RATIOS = dict.fromkeys(_DEFLATE, 1100) | {_LZMA: 10_000}
"""How far a byte can grow at most, by the number of the compression."""


def check_parts(content: bytes, parts: Iterable[tuple[int, int]], kind: int, size: int) -> None:
    """Check how far the compressed parts of a page grow.

    Args:
        content: The file.
        parts: Offset and length of each part.
        kind: The number of the compression.
        size: The bytes of the page's numbers.

    Raises:
        ValueError: If a part grows to more than the page, and to more than 256 MiB.
    """
    for start, length in parts:
        packed = content[start : start + length]
        most = max(size, most_from(0))
        if len(packed) * _RATIOS.get(kind, 0) <= most:
            continue
        whole = 0
        for unpacked in _inflated(packed) if kind in _DEFLATE else _extracted(packed):
            whole += unpacked
            if whole > most:
                raise ValueError(f"{len(packed)} compressed bytes of it grow to {whole} or more")


def _inflated(packed: bytes) -> Iterator[int]:
    """Yield how many bytes deflate unpacks at a time; end where the data is damaged."""
    stream = zlib.decompressobj()
    try:
        while packed and not stream.eof:
            yield len(stream.decompress(packed, _STEP))
            packed = stream.unconsumed_tail
    except zlib.error:
        return


def _extracted(packed: bytes) -> Iterator[int]:
    """Yield how many bytes LZMA unpacks at a time, from one or more streams in a row."""
    try:
        while packed:
            stream = lzma.LZMADecompressor()
            yield len(stream.decompress(packed, _STEP))
            while not stream.eof and not stream.needs_input:
                yield len(stream.decompress(b"", _STEP))
            packed = stream.unused_data
    except lzma.LZMAError:
        return
