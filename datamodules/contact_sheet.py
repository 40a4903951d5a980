"""A sheet of small pictures of a data set, a row per class, as training would see them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from coterie.datamodules.decoding import decode
from coterie.datamodules.resize import fit_images
from coterie.datamodules.source import Source
from coterie.tracking.atomic import replacing

_SIDE, _GAP, _LINE = 96, 6, 18
_COLUMNS, _ROWS = 10, 20
_END = 12
_FONT = Path(mpl.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
"""A font with accents, which Pillow's own has not."""
_PAPER, _INK = (255, 255, 255), (30, 30, 30)


def write_contact_sheet(
    source: Source, good: Sequence[int], classes: Sequence[str], path: Path
) -> bool:
    """Draw up to ten evenly spread pictures of each of up to twenty classes.

    Returns:
        Whether there was anything to draw: vectors have no picture.
    """
    rows = _chosen(source, np.array(good, dtype=np.int64), classes)
    if not rows:
        return False
    drawn = [(title, [_thumbnail(source, row) for row in chosen]) for title, chosen in rows]
    if any(image is None for _, images in drawn for image in images):
        return False
    height = len(drawn) * (_SIDE + _LINE + _GAP) + _GAP
    sheet = Image.new("RGB", (_COLUMNS * (_SIDE + _GAP) + _GAP, height), _PAPER)
    pen, font = ImageDraw.Draw(sheet), ImageFont.truetype(_FONT, 12)
    for line, (title, images) in enumerate(drawn):
        top = _GAP + line * (_SIDE + _LINE + _GAP)
        pen.text((_GAP, top), _within(title, sheet.width - 2 * _GAP, font), fill=_INK, font=font)
        for column, image in enumerate(images):
            if image is not None:
                sheet.paste(image, (_GAP + column * (_SIDE + _GAP), top + _LINE))
    with replacing(path) as temporary:
        sheet.save(temporary, "PNG")
    return True


def _within(title: str, width: int, font: ImageFont.FreeTypeFont) -> str:
    """Leave out as much of a title's middle as the width asks for, but keep its end: the number."""
    kept = len(title)
    while font.getlength(found := _shortened(title, kept)) > width:
        kept -= 1
    return found


def _shortened(title: str, kept: int) -> str:
    return title if kept == len(title) else f"{title[: kept - _END]}…{title[-_END:]}"


def _chosen(
    source: Source, good: NDArray[np.int64], classes: Sequence[str]
) -> list[tuple[str, list[int]]]:
    """Return a title and the rows of each line of the sheet."""
    if not len(good):
        return []
    if source.labels is None:
        some = _spread(good, _COLUMNS * 5)
        lines = [some[start : start + _COLUMNS] for start in range(0, len(some), _COLUMNS)]
        shown = f"{len(some):,} of " if len(some) < len(good) else ""
        title = f"{shown}{len(good):,} samples"
        return [("" if number else title, line) for number, line in enumerate(lines)]
    labels = source.labels[good]
    found = []
    for label in np.unique(labels)[:_ROWS].tolist():
        own = good[labels == label]
        name = "unknown" if label < 0 else classes[label] if label < len(classes) else str(label)
        found.append((f"{name} ({len(own):,})", _spread(own, _COLUMNS)))
    return found


def _spread(rows: NDArray[np.int64], most: int) -> list[int]:
    places = np.linspace(0, len(rows) - 1, min(most, len(rows))).round().astype(int)
    chosen: list[int] = rows[places].tolist()
    return chosen


def _thumbnail(source: Source, row: int) -> Image.Image | None:
    pixels: NDArray[Any]
    if source.pictures is not None:
        pixel_format = (
            source.pixel_format
            if source.pixel_format.size is not None
            else replace(source.pixel_format, mode="RGB")
        )
        pixels = decode(source.pictures[row], source.names[row], pixel_format).pixels
    else:
        pixels = source.read(np.array([row], dtype=np.int64))[0]
    if pixels.ndim != 3 or len(pixels) not in (1, 3):
        return None
    boxed = fit_images(pixels[None], _SIDE, "letterbox")[0]
    return Image.fromarray(boxed[0] if len(boxed) == 1 else boxed.transpose(1, 2, 0)).convert("RGB")
