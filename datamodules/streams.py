"""Samples from folders, shards, array files and tables, read in batches, never all at once."""

import math
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.config.growth import check_growth
from coterie.contract.data import SampleBatch
from coterie.datamodules.array_files import DAMAGE, read_header
from coterie.datamodules.csv_files import SUFFIXES
from coterie.datamodules.decoding import Picture, UnreadablePictureError
from coterie.datamodules.fitting import Fitting
from coterie.datamodules.image_files import refuse, tell_skipped
from coterie.datamodules.npz import USUAL
from coterie.datamodules.picture_search import PictureSearch
from coterie.datamodules.remote import opened
from coterie.datamodules.sample_tables import (
    open_csv_table,
    open_parquet_table,
    table_batches,
    unreadable,
)
from coterie.datamodules.shard_files import ShardFiles, shard_name
from coterie.datamodules.source import OnError
from coterie.datamodules.spelling import inside, spelled
from coterie.datamodules.table_columns import NO_COLUMNS, TableColumns
from coterie.errors import DataError

_KINDS = "a folder of pictures or shards, or a .npy, .npz, .parquet or .csv file"


@dataclass(frozen=True, kw_only=True)
class SampleStream:
    """Samples that are read on demand, once.

    Attributes:
        total: Number of samples; None if unknown before the end.
        named: Whether samples have names.
        of_clients: Whether the file says whose samples they are.
        batches: Batches of exactly the requested size, except the last.
    """

    total: int | None
    named: bool
    of_clients: bool = False
    batches: Iterator[SampleBatch]


def open_samples(
    path: Path,
    fitting: Fitting,
    batch_size: int,
    on_error: OnError = "refuse",
    columns: TableColumns = NO_COLUMNS,
) -> SampleStream:
    """Open new samples in a folder, an array file, a table or shards.

    A folder's pictures are sorted and named by path; shards hold their samples' order, names and
    clients. An .npz file's array is the only one, or the first usual name of `data=npz`. For tables
    see `coterie.datamodules.sample_tables`.

    Args:
        path: A folder of pictures or shards, or a file with the extension of its kind.
        fitting: The model's input; warns after the last batch if samples were converted.
        batch_size: Samples per batch.
        on_error: What pictures that cannot be read, and rows with empty cells, do: end the stream
            in an error, or make their batch smaller, with a warning after the last one.
        columns: The columns of the run's own table.

    Raises:
        DataError: If there are no samples, or they do not fit; also later, from the batches.
    """
    openers: dict[str, Callable[[Path, Fitting, int], SampleStream]] = {
        ".npy": _open_npy,
        ".npz": _open_npz,
        **dict.fromkeys((".parquet", *SUFFIXES), partial(_open_table, columns, on_error)),
    }
    if (path / shard_name(0)).is_file():
        return _open_shards(path, fitting, batch_size, on_error)
    if path.is_dir():
        return _open_folder(path, fitting, batch_size, on_error)
    if not path.is_file():
        raise DataError(f"{path}: there is no such file or folder; give {_KINDS}.")
    if path.suffix.lower() not in openers:
        raise DataError(f"{path}: its kind is unknown; give {_KINDS}.")
    try:
        opened(path).close()
    except OSError as error:
        raise unreadable(path, error) from error
    return openers[path.suffix.lower()](path, fitting, batch_size)


def _open_folder(folder: Path, fitting: Fitting, size: int, on_error: OnError) -> SampleStream:
    search = PictureSearch()
    paths = search.find(folder)
    search.tell(folder)
    sites = fitting.sites_in(folder, paths)
    if fitting.measures:
        fitting.measure_sites(paths, sites)

    def read(rows: range) -> _Pictures:
        files = [paths[row] for row in rows]
        shown = [spelled(str(file)) for file in files]
        names = [inside(spelled(str(folder)), name) for name in shown]
        return _Pictures(fitting.levelled(files, [sites[row] for row in rows]), shown, names)

    batches = _picture_batches(len(paths), read, fitting, size, on_error)
    return SampleStream(total=len(paths), named=True, batches=batches)


def _open_shards(folder: Path, fitting: Fitting, size: int, on_error: OnError) -> SampleStream:
    files = ShardFiles.open(folder)
    known = (*files.index.clients, "")  # -1 is no client
    owners = files.numbers("client") if files.index.clients else None

    def clients(rows: NDArray[np.int64]) -> tuple[str, ...] | None:
        return None if owners is None else tuple(known[owner] for owner in owners[rows])

    def read(rows: range) -> _Pictures:
        places = np.array(rows)
        names = files.names(places)
        shown = [f"{folder}, {name}" for name in names]
        return _Pictures(files.pictures(places), shown, names, clients(places))

    def vectors() -> Iterator[SampleBatch]:
        for start in range(0, len(files), size):
            rows = np.arange(start, min(start + size, len(files)))
            samples = fitting.array(files.vectors(rows), str(folder))
            yield SampleBatch(samples, tuple(files.names(rows)), clients(rows))

    pictures = files.index.kind == "pictures"
    found = _picture_batches(len(files), read, fitting, size, on_error) if pictures else vectors()
    return SampleStream(total=len(files), named=True, of_clients=owners is not None, batches=found)


class _Pictures(NamedTuple):
    """Pictures, their names in errors, and the samples' own names and clients."""

    pictures: Sequence[Picture]
    shown: Sequence[str]
    names: Sequence[str]
    clients: Sequence[str] | None = None


def _picture_batches(
    count: int, read: Callable[[range], _Pictures], fitting: Fitting, size: int, on_error: OnError
) -> Iterator[SampleBatch]:
    bad: list[UnreadablePictureError] = []
    for start in range(0, count, size):
        found = read(range(start, min(start + size, count)))
        decoded = fitting.readable(found.pictures, found.shown)
        bad += decoded.bad.values()
        if bad and (on_error == "refuse" or len(bad) == count):
            refuse(bad, count, "repair them or take them out", skip="on_error=skip")
        good = [row for row in range(len(found.names)) if row not in decoded.bad]
        if good:
            names = tuple(found.names[row] for row in good)
            owners = found.clients
            clients = None if owners is None else tuple(owners[row] for row in good)
            yield SampleBatch(decoded.images, names, clients)
    tell_skipped(bad, count)
    fitting.warn()


def _open_npy(path: Path, fitting: Fitting, size: int) -> SampleStream:
    try:
        file = path.open("rb")
        shape, order, dtype = read_header(file)
        _check_shape(shape, dtype, path.stat().st_size - file.tell())
        if order == "F" and len(shape) > 1:  # its rows are spread over the file
            array = np.fromfile(file, dtype, math.prod(shape)).reshape(shape, order="F")
            return _array_stream(path, shape, fitting, _slices(array, size))
    except DAMAGE as error:
        raise unreadable(path, error) from error
    # Read, not mapped: a mapped file that is cut short meanwhile would end the process.
    return _array_stream(path, shape, fitting, _chunks(path, file, shape, dtype, size))


def _open_npz(path: Path, fitting: Fitting, size: int) -> SampleStream:
    try:
        archive = zipfile.ZipFile(path)
        entry = archive.getinfo(f"{_array_name(path, archive)}.npy")
        check_growth(entry.compress_size, entry.file_size)
        file = archive.open(entry)
        shape, order, dtype = read_header(file)
        _check_shape(shape, dtype, entry.file_size)
        if order == "F" and len(shape) > 1:
            raise ValueError("its values lie column by column; save np.ascontiguousarray of it")
    except DAMAGE as error:
        raise unreadable(path, error) from error
    return _array_stream(path, shape, fitting, _chunks(path, file, shape, dtype, size))


def _open_table(
    columns: TableColumns, on_error: OnError, path: Path, fitting: Fitting, size: int
) -> SampleStream:
    is_parquet = path.suffix.lower() == ".parquet"
    table = open_parquet_table(path, size) if is_parquet else open_csv_table(path, columns)
    batches, named = table_batches(path, table, fitting, size, columns, on_error=on_error)
    of_clients = columns.client_in(table.schema.names) is not None
    return SampleStream(total=table.rows, named=named, of_clients=of_clients, batches=batches)


def _check_shape(shape: tuple[int, ...], dtype: np.dtype[Any], size: int) -> None:
    """Raise a ValueError for an array of more bytes than there are."""
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > size:
        raise ValueError(f"its array of shape {shape} is cut short")


def _array_stream(
    path: Path, shape: tuple[int, ...], fitting: Fitting, chunks: Iterator[NDArray[Any]]
) -> SampleStream:
    if not shape or 0 in shape:
        raise DataError(f"{path}: it holds no sample (shape {shape}); give at least one.")

    def batches() -> Iterator[SampleBatch]:
        for chunk in chunks:
            yield SampleBatch(fitting.array(chunk, str(path)))
        fitting.warn()

    return SampleStream(total=shape[0], named=False, batches=batches())


def _slices(array: NDArray[Any], size: int) -> Iterator[NDArray[Any]]:
    for start in range(0, len(array), size):
        yield array[start : start + size]


def _array_name(path: Path, archive: zipfile.ZipFile) -> str:
    names = [name.removesuffix(".npy") for name in archive.namelist()]
    found = names if len(names) == 1 else [name for name in USUAL["samples"] if name in names]
    if not found:
        raise DataError(
            f"{path}: it has the arrays {', '.join(names) or '(none)'}; name the one with the "
            "samples samples or x."
        )
    return found[0]


def _chunks(
    path: Path, file: IO[bytes], shape: tuple[int, ...], dtype: np.dtype[Any], size: int
) -> Iterator[NDArray[Any]]:
    each = dtype.itemsize * int(np.prod(shape[1:]))
    for start in range(0, shape[0], size):
        count = min(size, shape[0] - start)
        try:
            content = file.read(count * each)
            chunk = np.frombuffer(content, dtype).reshape(count, *shape[1:])
        except DAMAGE as error:
            raise unreadable(path, error) from error
        yield chunk
