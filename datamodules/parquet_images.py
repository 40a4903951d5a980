"""Image sets in parquet files, as the Hugging Face hub lays them out.

A file has a column `image` or `img`, a struct with the encoded picture in its field `bytes`, and
an integer column `label`. A half of a data set is one file or several shards.
"""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from coterie.contract.data import Indices
from coterie.errors import DataError
from datamodules.base import Half, ImageSource

Mode = Literal["L", "RGB"]
_SHARD = re.compile(r"-\d+-of-(\d+)\.parquet$")
_CHUNK = 512
"""Images a thread decodes at a time."""


def find_parquet(folder: Path, half: Half) -> list[Path]:
    """The files of one half in `folder` or in one folder below it, in order; empty if none.

    Raises:
        DataError: If two folders below hold such files, or if shards are missing.
    """
    files = sorted(folder.glob(f"{half}*.parquet")) or sorted(folder.glob(f"*/{half}*.parquet"))
    parents = sorted({path.parent for path in files})
    if len(parents) > 1:
        raise DataError(
            f"{half}*.parquet lies in both {parents[0]} and {parents[1]}; keep one of them."
        )
    whole = [path for path in files if path.name == f"{half}.parquet"]
    if whole:
        return whole
    expected = {int(match[1]) for path in files if (match := _SHARD.search(path.name))}
    if expected and expected != {len(files)}:
        raise DataError(
            f"{parents[0]} holds {len(files)} files {half}*.parquet, but their names say there are "
            f"{max(expected)} shards; fetch the missing ones or remove the others."
        )
    return files


def open_parquet(files: list[Path], mode: Mode, classes: int) -> ImageSource:
    """Open the files of one half; pictures are decoded when rows are read.

    Args:
        files: The half's files, in order.
        mode: "L" gives one channel, "RGB" three; other pictures are converted.
        classes: Labels have to be in 0..classes - 1.

    Raises:
        DataError: If a file is corrupt, lacks a column or holds another label.
    """
    tables = [_read_table(path, classes) for path in files]
    pictures = [picture for table, _ in tables for picture in table]
    origin = np.repeat(np.arange(len(files)), [len(table) for table, _ in tables])

    def read(rows: Indices) -> NDArray[np.uint8]:
        paths = [files[number] for number in origin[rows]]
        return _decode([pictures[row] for row in rows], paths, mode)

    return ImageSource(labels=np.concatenate([labels for _, labels in tables]), read=read)


def _read_table(path: Path, classes: int) -> tuple[list[bytes | None], NDArray[np.int64]]:
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path} cannot be read ({reason}); fetch it again.") from error
    column = next((name for name in ("image", "img") if name in table.column_names), None)
    if column is None or "label" not in table.column_names:
        raise DataError(
            f"{path} has the columns {', '.join(table.column_names)}; it needs image (or img) "
            "and label."
        )
    try:
        pictures = pc.struct_field(table[column], "bytes").to_pylist()
        labels = table["label"].to_numpy().astype(np.int64, casting="safe")
    except (pa.ArrowException, TypeError) as error:
        raise DataError(
            f"{path} has {column}: {table[column].type} and label: {table['label'].type} (or "
            "missing labels); it needs a struct with a field bytes, and integers."
        ) from error
    if labels.size and not 0 <= labels.min() <= labels.max() < classes:
        wrong = labels[(labels < 0) | (labels >= classes)][0]
        raise DataError(f"{path} holds the label {wrong}; it has to be in 0..{classes - 1}.")
    return pictures, labels


def _decode(pictures: list[Any], paths: list[Path], mode: Mode) -> NDArray[np.uint8]:
    """Decode to (n, channels, height, width); `paths` names each picture's file in errors."""
    if not pictures:
        return np.empty((0, len(mode), 0, 0), dtype=np.uint8)
    height, width, channels = _decode_one(pictures[0], paths[0], mode).shape
    images = np.empty((len(pictures), channels, height, width), dtype=np.uint8)

    def decode_chunk(start: int) -> None:
        for row in range(start, min(start + _CHUNK, len(pictures))):
            pixels = _decode_one(pictures[row], paths[row], mode)
            if pixels.shape != (height, width, channels):
                raise DataError(
                    f"{paths[row]} holds pictures of {height}×{width} and of {pixels.shape[0]}×"
                    f"{pixels.shape[1]} pixels; make them all one size."
                )
            images[row] = pixels.transpose(2, 0, 1)

    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        for _ in pool.map(decode_chunk, range(0, len(pictures), _CHUNK)):
            pass
    return images


def _decode_one(picture: bytes | None, path: Path, mode: Mode) -> NDArray[np.uint8]:
    if picture is None:
        raise DataError(f"{path} holds a row without picture bytes; fetch it again.")
    try:
        with Image.open(BytesIO(picture)) as image:
            pixels = np.asarray(image.convert(mode))
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        raise DataError(
            f"{path} holds a picture that cannot be read ({error}); fetch it again."
        ) from error
    return pixels[:, :, None] if pixels.ndim == 2 else pixels
