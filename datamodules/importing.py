"""Imports a data set into shards; every picture is decoded once, to see that it can be."""

import io
import logging
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from coterie.errors import DataError
from datamodules.base import HALVES, DataSet
from datamodules.image_files import Picture, decode_images
from datamodules.shard_files import INDEX, Row, ShardIndex, write_index, write_shard_files
from datamodules.source import Source

OnError = Literal["refuse", "skip"]

_BLOCK = 256
"""Samples looked at in one go."""
_NAMED = 20
"""Unreadable pictures that an error names."""

_logger = logging.getLogger(__name__)


@dataclass
class Imported:
    """What an import found.

    Attributes:
        samples: How many samples it wrote.
        bad: A sentence for each picture that cannot be read.
        modes: Pillow's name of a picture's mode to the number of pictures that have it.
        shapes: The sizes (height, width) of pictures, or (features,) of vectors.
    """

    samples: int = 0
    bad: list[str] = field(default_factory=list)
    modes: Counter[str] = field(default_factory=Counter)
    shapes: set[tuple[int, ...]] = field(default_factory=set)


def import_data(
    data: DataSet[Any], out: Path, *, shard_bytes: int, on_error: OnError
) -> dict[str, Imported]:
    """Write a data set's halves as shards: into `out`, or into `out/train` and `out/test`.

    Args:
        data: What to import.
        out: A folder that is empty or not there.
        shard_bytes: About how large a shard becomes.
        on_error: `refuse` looks at all pictures and then names those that cannot be read; `skip`
            leaves them out and lists them in `skipped.txt`.

    Returns:
        What was found, by half.

    Raises:
        DataError: If `out` holds anything, the data cannot be read, or a picture cannot and
            `on_error` is `refuse`.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"out={out}: it is not empty; choose another folder.")
    folders = {half: out / half for half in HALVES} if data.has_test() else {HALVES[0]: out}
    found: dict[str, Imported] = {
        half: _import_half(data.open_half(half), data.classes, folder, shard_bytes)
        for half, folder in folders.items()
    }
    bad = [sentence for half in found.values() for sentence in half.bad]
    nothing = any(half.samples == 0 for half in found.values())
    if bad and (nothing or on_error == "refuse"):
        for folder in (*folders.values(), out):
            _discard(folder)
        more = f" And {len(bad) - _NAMED} more." if len(bad) > _NAMED else ""
        raise DataError(
            f"{len(bad)} pictures cannot be read; mend them"
            f"{'' if nothing else ', or leave them out with on_error=skip'}: "
            f"{' '.join(bad[:_NAMED])}{more}"
        )
    if bad:
        (out / "skipped.txt").write_text("\n".join(bad) + "\n", encoding="utf-8")
        _logger.warning("%d pictures were left out: see %s.", len(bad), out / "skipped.txt")
    return found


def _import_half(
    source: Source, classes: tuple[str, ...], folder: Path, shard_bytes: int
) -> Imported:
    found = Imported()
    rows = _pictures(source, found) if source.pictures is not None else _arrays(source, found)
    entries = write_shard_files(folder, rows, shard_bytes)
    if not entries:
        if found.bad:
            return found
        raise DataError(f"{folder}: there is no sample to import; check data.path.")
    vectors = any(len(shape) == 1 for shape in found.shapes)
    index = ShardIndex(
        kind="vectors" if vectors else "pictures",
        shape=next(iter(found.shapes)) if len(found.shapes) == 1 else None,
        modes=dict(found.modes),
        classes=source.classes or classes if source.labels is not None else (),
        clients=source.owner_names,
        shards=entries,
    )
    write_index(folder, index)
    return found


def _pictures(source: Source, found: Imported) -> Iterator[Row]:
    """The pictures that can be read, as they are encoded."""
    pictures = source.pictures
    assert pictures is not None
    with ThreadPoolExecutor() as pool:
        for start in range(0, source.count, _BLOCK):
            rows = range(start, min(start + _BLOCK, source.count))
            looked = pool.map(lambda row: _look(pictures[row], source.names[row]), rows)
            for row, (encoded, shape, mode) in zip(rows, looked, strict=True):
                if encoded is None:
                    found.bad.append(mode)
                else:
                    found.modes[mode] += 1
                    yield _row(source, row, encoded, shape, found)


def _look(picture: Picture, name: str) -> tuple[bytes | None, tuple[int, ...], str]:
    """A picture's bytes, size (height, width) and mode; or None and why it cannot be read."""
    try:
        encoded = picture.read_bytes() if isinstance(picture, Path) else picture
        decoded = decode_images([encoded], [name], mode="RGB")
    except OSError as error:
        return None, (), f"{name} cannot be read ({error.strerror})."
    except DataError as error:
        return None, (), str(error)
    mode = next(iter(decoded.converted), "RGB")
    return encoded, decoded.images.shape[2:], mode


def _arrays(source: Source, found: Imported) -> Iterator[Row]:
    """Vectors as they are, and images that come as arrays as PNG."""
    for start in range(0, source.count, _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, source.count), dtype=np.int64)
        for row, sample in zip(rows.tolist(), source.read(rows), strict=True):
            if sample.ndim == 1:
                yield _row(source, row, sample, sample.shape, found)
                continue
            grey = len(sample) == 1
            found.modes["L" if grey else "RGB"] += 1
            file = io.BytesIO()
            Image.fromarray(sample[0] if grey else sample.transpose(1, 2, 0)).save(file, "PNG")
            yield _row(source, row, file.getvalue(), sample.shape[1:], found)


def _row(
    source: Source,
    row: int,
    sample: bytes | NDArray[np.float32],
    shape: tuple[int, ...],
    found: Imported,
) -> Row:
    found.samples += 1
    found.shapes.add(tuple(map(int, shape)))
    label = -1 if source.labels is None else int(source.labels[row])
    client = -1 if source.owners is None else int(source.owners[row])
    return Row(sample, label, client, source.names[row] if source.names else f"row {row}")


def _discard(folder: Path) -> None:
    """Take away what an import that is refused has written."""
    for path in (*folder.glob("shard-*.arrow"), folder / INDEX):
        path.unlink(missing_ok=True)
    if folder.is_dir():
        folder.rmdir()
