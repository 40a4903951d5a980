"""Image sets in parquet files, in the layout of the Hugging Face hub.

A file has a column `image` or `img`, a struct with the encoded picture in its field `bytes`, and
an integer column `label`. A half of a data set is one file or several shards.
"""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from coterie.config.parquet_growth import ParquetTable
from coterie.datamodules.base import Half
from coterie.datamodules.decoding import Mode, PixelFormat
from coterie.datamodules.source import Source, source_from_pictures
from coterie.errors import DataError, reason

_SHARD = re.compile(r"-\d+-of-(\d+)\.parquet$")


def find_parquet(folder: Path, half: Half) -> list[Path]:
    """Find the files of training or test set in `folder` or one folder below, in order.

    Raises:
        DataError: If two folders below hold such files, or shards are missing.
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


def open_parquet_images(files: list[Path], mode: Mode, classes: int) -> Source:
    """Open the files of the training or test set; pictures are decoded on demand.

    Args:
        files: The half's files, in order.
        mode: "L" for one channel, "RGB" for three; other pictures are converted.
        classes: Number of classes; labels must be in 0..classes - 1.

    Raises:
        DataError: If a file is corrupt, lacks a column or holds an invalid label.
    """
    tables = [_read_table(path, classes) for path in files]
    pictures = [picture for table, _ in tables for picture in table]
    names = [
        f"{path}, row {row}"
        for path, (table, _) in zip(files, tables, strict=True)
        for row in range(len(table))
    ]
    labels = np.concatenate([labels for _, labels in tables])
    return replace(source_from_pictures(pictures, names, PixelFormat(mode=mode)), labels=labels)


def _read_table(path: Path, classes: int) -> tuple[list[bytes], NDArray[np.int64]]:
    try:
        opened = ParquetTable(path, path.stat().st_size)
        names = opened.schema.names
        column = next((name for name in ("image", "img") if name in names), None)
        table = opened.read([column, "label"]) if column and "label" in names else None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({reason(error)}); fetch it again.") from error
    if table is None:
        raise DataError(
            f"{path} has the columns {', '.join(names)}; it needs image (or img) and label."
        )
    try:
        pictures = pc.struct_field(table[column], "bytes").to_pylist()
        labels = table["label"].to_numpy().astype(np.int64, casting="safe")
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError(
            f"{path} has {column}: {table[column].type} and label: {table['label'].type} (or "
            "missing labels); make pictures structs with a field bytes, and labels integers."
        ) from error
    if None in pictures:
        raise DataError(
            f"{path}, row {pictures.index(None)}, has no picture bytes; fetch the file again."
        )
    if labels.size and not 0 <= labels.min() <= labels.max() < classes:
        wrong = labels[(labels < 0) | (labels >= classes)][0]
        raise DataError(f"{path} holds the label {wrong}; it has to be in 0..{classes - 1}.")
    return pictures, labels
