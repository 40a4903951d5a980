"""Imports a data set into shards, and decodes every picture once to check it."""

import io
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from coterie.contract.data import Unreadable
from coterie.datamodules.base import HALVES, DataSet
from coterie.datamodules.decoding import UnreadablePictureError
from coterie.datamodules.image_files import Tally, refuse
from coterie.datamodules.inspection import Looked, look_at
from coterie.datamodules.remote import writing
from coterie.datamodules.shard_files import INDEX, Row, ShardIndex, write_index, write_shard_files
from coterie.datamodules.source import Source
from coterie.datamodules.spelling import inside
from coterie.errors import DataError
from coterie.tracking.paths import check_ours
from coterie.tracking.skipped import SKIPPED, write_skipped

_logger = logging.getLogger(__name__)


@dataclass
class Imported:
    """The result of an import.

    Attributes:
        modes: Pillow's name of a picture's mode to the number of pictures that have it.
        shapes: The sizes (height, width) of pictures, or (features,) of vectors.
        tally: How many pictures are not square, or dark.
    """

    samples: int = 0
    bad: list[UnreadablePictureError] = field(default_factory=list)
    modes: Counter[str] = field(default_factory=Counter)
    shapes: set[tuple[int, ...]] = field(default_factory=set)
    tally: Tally = field(default_factory=Tally)


def import_data(data: DataSet[Any], out: Path, *, shard_bytes: int) -> dict[str, Imported]:
    """Write a data set as shards into `out`, or into `out/train` and `out/test`.

    Pictures that cannot be read are treated as the data set's `on_error` says, and listed in
    `out/skipped.csv` if they are left out.

    Args:
        data: What to import.
        out: A folder that is empty or not there.
        shard_bytes: About how large a shard becomes.

    Returns:
        What was found, by half.

    Raises:
        DataError: If `out` holds anything, the data cannot be read, or a picture cannot and is not
            to be skipped.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"out={out}: it is not empty; choose another folder.")
    if out.exists():
        check_ours("out", out)
    folders = {half: out / half for half in HALVES} if data.has_test() else {HALVES[0]: out}
    found: dict[str, Imported] = {
        half: _import_half(data.open_half(half), data.classes, folder, shard_bytes)
        for half, folder in folders.items()
    }
    bad = [error for half in found.values() for error in half.bad]
    nothing = any(half.samples == 0 for half in found.values())
    if bad and (nothing or data.on_error == "refuse"):
        for folder in (*folders.values(), out):
            _discard(folder)
        count = len(bad) + sum(half.samples for half in found.values())
        refuse(bad, count, "repair them", skip="" if nothing else "data.on_error=skip")
    if bad:
        with writing(out / SKIPPED) as temporary:
            write_skipped(temporary, [Unreadable(error.name, error.reason) for error in bad])
        _logger.warning("%d pictures were left out: see %s.", len(bad), out / SKIPPED)
    return found


def _import_half(
    source: Source, classes: tuple[str, ...], folder: Path, shard_bytes: int
) -> Imported:
    found = Imported()
    entries = write_shard_files(folder, _rows(source, found), shard_bytes)
    if not entries:
        if found.bad:
            return found
        raise DataError(f"{folder}: there is no sample to import; check data.path.")
    vectors = any(len(shape) == 1 for shape in found.shapes)
    index = ShardIndex(
        kind="vectors" if vectors else "pictures",
        shape=next(iter(found.shapes)) if len(found.shapes) == 1 else None,
        modes=dict(found.modes),
        oblong=found.tally.reshaped,
        dark=found.tally.dark,
        classes=source.classes or classes if source.labels is not None else (),
        clients=source.owner_names,
        shards=entries,
    )
    write_index(folder, index)
    return found


def _rows(source: Source, found: Imported) -> Iterator[Row]:
    """Yield encoded pictures, vectors, and image arrays as PNG."""
    for looked in look_at(source):
        if looked.error is not None:
            found.bad.append(looked.error)
            continue
        found.samples += 1
        found.shapes.add(tuple(map(int, looked.shape)))
        found.tally.merge(looked.tally)
        if looked.mode:
            found.modes[looked.mode] += 1
        label = -1 if source.labels is None else int(source.labels[looked.row])
        client = -1 if source.owners is None else int(source.owners[looked.row])
        yield Row(_encoded(looked), label, client, inside(source.folder, looked.name))


def _encoded(looked: Looked) -> bytes | NDArray[np.float32]:
    sample = looked.sample
    if isinstance(sample, bytes) or sample.ndim == 1:
        return sample
    file = io.BytesIO()
    pixels = sample[0] if looked.mode == "L" else sample.transpose(1, 2, 0)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def _discard(folder: Path) -> None:
    """Delete what a refused import has written."""
    for path in (*folder.glob("shard-*.arrow"), folder / INDEX):
        path.unlink(missing_ok=True)
    if folder.is_dir() and isinstance(folder, Path):  # object stores have no empty folders
        folder.rmdir()
