"""Samples of a parquet or CSV table, in batches."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from coterie.config.parquet_growth import ParquetTable
from coterie.contract.data import SampleBatch
from coterie.datamodules.csv_files import open_csv, place_of, why_unreadable
from coterie.datamodules.decoding import Picture, UnreadablePictureError
from coterie.datamodules.fitting import Fitting
from coterie.datamodules.image_files import refuse, tell_skipped
from coterie.datamodules.left_out_columns import Cells
from coterie.datamodules.source import OnError
from coterie.datamodules.table_columns import (
    READ_AS_TEXT,
    SampleColumns,
    TableColumns,
    sample_columns,
)
from coterie.errors import DataError, listed

_logger = logging.getLogger(__name__)

_SKIP = "on_error=skip"
_CORRUPT = (pa.ArrowException, OSError, ValueError)
"""What Arrow raises for damaged bytes; a name that is not UTF-8 is a ValueError."""


@dataclass(frozen=True, kw_only=True)
class OpenTable:
    """An open table.

    Attributes:
        schema: Names and types of the columns.
        rows: The number of rows, if known.
        read: Returns record batches with at least some columns, from the first row on.
        start: Returns the first cells of a column, of a CSV file.
    """

    schema: Any
    rows: int | None
    read: Callable[[Sequence[str]], Iterable[Any]]
    start: Cells | None = None


def open_parquet_table(path: Path, batch_size: int) -> OpenTable:
    """Open a parquet file.

    Raises:
        DataError: If it is not one.
    """
    try:
        file = ParquetTable(path, path.stat().st_size)
        schema = file.schema
    except _CORRUPT as error:
        raise unreadable(path, error) from error
    return OpenTable(schema=schema, rows=file.rows, read=partial(file.batches, batch_size))


def open_csv_table(path: Path, columns: TableColumns) -> OpenTable:
    """Open a CSV file with a header; types are inferred from its first megabyte.

    Raises:
        DataError: If it is not one.
    """
    try:
        text = (*READ_AS_TEXT, *columns.named)
        schema = open_csv(path, text).schema
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise unreadable(path, error) from error
    return OpenTable(
        schema=schema,
        rows=None,
        read=lambda _: open_csv(path, text),
        start=lambda name: _start(open_csv(path, text), name),
    )


def _start(batches: Iterable[Any], name: str) -> Any:
    """Return a column's cells in the first batch; of several columns with the name, the first's."""
    found = (rows.column(rows.schema.get_all_field_indices(name)[0]) for rows in batches)
    return next(found, pa.array([], pa.string()))


def table_batches(
    path: Path,
    table: OpenTable,
    fitting: Fitting,
    batch_size: int,
    own: TableColumns,
    *,
    on_error: OnError,
) -> tuple[Iterator[SampleBatch], bool]:
    """Return the batches, and whether samples have names.

    Args:
        path: The table.
        table: The same, open.
        fitting: The model's input; warns after the last batch if samples were converted.
        batch_size: Rows per batch.
        own: The columns of the table that the run trained on.
        on_error: What rows do that have an empty cell, a number that is not finite or a picture
            that cannot be read: end the batches in an error, or make their batch smaller, with a
            warning after the last one. Rows without names are then named by their number.

    Raises:
        DataError: If there are no rows, no columns with samples, or columns of a wrong type or with
            the same name; also later, from the batches.
    """
    if table.rows == 0:
        raise DataError(f"{path}: it holds no row; give at least one.")
    columns = sample_columns(path, table.schema, own, table.start)
    reader = _Reader(path, columns, fitting, skip=on_error == "skip")
    return reader.batches(table, batch_size), columns.name is not None or reader.skip


class _Rows(NamedTuple):
    """Rows of a table, and their numbers in it, from 0."""

    table: Any
    numbers: NDArray[np.int64]

    def texts(self, column: str) -> list[str]:
        return ["" if value is None else str(value) for value in self.table[column].to_pylist()]


@dataclass(frozen=True)
class _Reader:
    """Reader of the samples of a table.

    Attributes:
        skip: Whether rows without a sample are left out.
        unfilled: The numbers of the rows that were left out since a cell is empty or not finite.
        bad: The errors of pictures that were left out.
    """

    path: Path
    columns: SampleColumns
    fitting: Fitting
    skip: bool
    unfilled: list[int] = field(default_factory=list)
    bad: list[UnreadablePictureError] = field(default_factory=list)

    def batches(self, table: OpenTable, size: int) -> Iterator[SampleBatch]:
        self._measure_sites(table)
        start = 0
        for each in _rebatched(self.path, table.read(self.columns.used), size):
            try:
                batch = self._batch(_Rows(each, np.arange(start, start + len(each))))
            except (pa.ArrowException, UnicodeDecodeError) as error:
                raise unreadable(self.path, error) from error
            if batch is not None:
                yield batch
            start += len(each)
        self._tell(start)

    def _tell(self, count: int) -> None:
        """Warn about left-out rows, of `count` in all; raise a DataError if none remains."""
        if not count:
            raise DataError(f"{self.path}: it holds no row; give at least one.")
        if self.bad and len(self.bad) + len(self.unfilled) == count:
            refuse(self.bad, count, "repair them or take them out")
        if len(self.unfilled) == count:
            raise DataError(f"{self.path}: each of its {count:,} rows has empty cells; fill some.")
        if self.unfilled:
            _logger.warning(
                "%s: %d of %d rows have cells that are empty or not finite and are left out, the "
                "first of them %s.",
                *(self.path, len(self.unfilled), count, place_of(self.path, self.unfilled[0])),
            )
        tell_skipped(self.bad, count)
        self.fitting.warn()

    def _batch(self, rows: _Rows) -> SampleBatch | None:
        """Return the samples of rows; None if all are left out."""
        if self.skip and self.columns.kind != "picture":  # its empty cells are unreadable pictures
            rows = self._filled(rows)
        if not len(rows.numbers):
            return None
        samples, kept = self._samples(rows)
        if not len(kept):
            return None

        def of_kept(column: str | None) -> tuple[str, ...] | None:
            texts = None if column is None else rows.texts(column)
            return None if texts is None else tuple(texts[row] for row in kept)

        numbers = tuple(map(str, rows.numbers[kept])) if self.skip else None
        names = numbers if self.columns.name is None else of_kept(self.columns.name)
        return SampleBatch(samples, names, of_kept(self.columns.client))

    def _filled(self, rows: _Rows) -> _Rows:
        """Return the rows whose cells are filled, with finite numbers; note the others."""
        masks = [_is_filled(rows.table[name]) for name in self.columns.samples]
        mask = reduce(np.logical_and, masks)
        self.unfilled.extend(rows.numbers[~mask].tolist())
        return _Rows(rows.table.filter(pa.array(mask)), rows.numbers[mask])

    def _samples(self, rows: _Rows) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
        """Return samples, and the positions of the rows that they are from."""
        columns, every, start = self.columns, np.arange(len(rows.numbers)), int(rows.numbers[0])
        name = columns.samples[0]
        values = {name: rows.table[name] for name in columns.samples}
        if columns.kind == "numbers":
            matrix = feature_matrix(self.path, values, columns.own, start, skip=_SKIP)
            named = f"{self.path}, columns {listed(columns.samples)}"
            return self.fitting.array(matrix, named), every
        if not self.skip:
            _check_filled(self.path, values, start, _SKIP)
        if columns.kind == "list":
            return self.fitting.array(_matrix(self.path, name, values[name]), str(self.path)), every
        if columns.kind == "file":
            files = [self.path.parent / file for file in values[name].to_pylist()]
            levelled = self.fitting.levelled(files, self._sites(rows))
            return self._readable(levelled, [str(file) for file in files])
        shown = [f"{self.path}, {place_of(self.path, number)}" for number in rows.numbers]
        return self._readable(_encoded(values[name]), shown)

    def _readable(
        self, pictures: Sequence[Picture], shown: Sequence[str]
    ) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
        """Decode pictures, and return which of them can be read."""
        decoded = self.fitting.readable(pictures, shown)
        if not self.skip:
            remedy = "repair them or take them out"
            refuse([*decoded.bad.values()], len(pictures), remedy, skip=_SKIP)
        self.bad.extend(decoded.bad.values())
        kept = [row for row in range(len(pictures)) if row not in decoded.bad]
        return decoded.images, np.array(kept, np.int64)

    def _measure_sites(self, table: OpenTable) -> None:
        """Measure the levels of each client's files, if the run had levels of sites."""
        columns = self.columns
        if columns.kind != "file" or not self.fitting.measures:
            return
        files: list[Path] = []
        sites: list[str] = []
        try:
            for each in table.read([columns.samples[0], *filter(None, [columns.client])]):
                cells = each.column(columns.samples[0]).to_pylist()
                rows = _Rows(pa.Table.from_batches([each]), np.arange(len(cells)))
                found = [*zip(cells, self._sites(rows), strict=True)]
                files += [self.path.parent / file for file, _ in found if file]
                sites += [site for file, site in found if file]
        except _CORRUPT as error:
            raise unreadable(self.path, error) from error
        self.fitting.measure_sites(files, sites)

    def _sites(self, rows: _Rows) -> list[str]:
        """Return each row's client; "" where the table has none."""
        client = self.columns.client
        return [""] * len(rows.numbers) if client is None else rows.texts(client)


def _encoded(values: Any) -> list[bytes]:
    """Return the bytes of a column of pictures; none for an empty cell."""
    encoded = pc.struct_field(values, "bytes") if pa.types.is_struct(values.type) else values
    return [bytes(picture or b"") for picture in encoded.to_pylist()]


def _is_filled(values: Any) -> NDArray[np.bool_]:
    """Return which cells of a column are filled, and finite if they are numbers."""
    mask = pc.is_finite(values) if pa.types.is_floating(values.type) else pc.is_valid(values)
    filled: NDArray[np.bool_] = mask.fill_null(False).to_numpy()
    return filled


def feature_matrix(
    path: Path,
    columns: Mapping[str, Any],
    own: TableColumns,
    start: int = 0,
    *,
    skip: str = "",
    gaps: bool = False,
) -> NDArray[Any]:
    """Return columns of numbers side by side, (n, columns), in their ranges.

    Args:
        path: The table, for errors.
        columns: Name to Arrow's column.
        own: Has the ranges.
        start: The number of the first row.
        skip: What would leave out rows with empty cells, such as on_error=skip.
        gaps: Whether cells may be empty, and become NaN.

    Raises:
        DataError: If a cell is empty, or a number that is not finite, and may not be.
    """
    if not gaps:
        _check_filled(path, columns, start, skip)
    return np.column_stack([_ranged(values, own.ranges.get(n)) for n, values in columns.items()])


def _ranged(values: Any, range_: tuple[float, float] | None) -> NDArray[Any]:
    """Return a column's numbers, scaled so that the range, if given, becomes [0, 1]."""
    numbers: NDArray[Any] = values.to_numpy()
    if range_ is None:
        return numbers
    low, high = range_
    return (numbers.astype(np.float64) - low) / (high - low)


def _check_filled(path: Path, columns: Mapping[str, Any], start: int, skip: str) -> None:
    """Raise a DataError if cells of columns are empty, or numbers that are not finite."""
    gaps = []
    for name, values in columns.items():
        if len(rows := np.flatnonzero(~_is_filled(values))):
            first = place_of(path, start + int(rows[0]))
            gaps.append(f"{name} in {len(rows):,} of {len(values):,} rows ({first} first)")
    if gaps:
        skip = f", or set {skip}" if skip else ""
        raise DataError(
            f"{path}: cells are empty or not finite: {listed(gaps)}; fill or drop such rows{skip}."
        )


def _matrix(path: Path, column: str, values: Any) -> NDArray[Any]:
    lengths = set(pc.list_value_length(values).to_pylist())
    if len(lengths) > 1:
        raise DataError(
            f"{path}: {column} has lists of {min(lengths)} and of {max(lengths)} numbers; make "
            "them all one length."
        )
    flat = values.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return np.asarray(flat).reshape(len(values), -1)


def _rebatched(path: Path, batches: Iterable[Any], size: int) -> Iterator[Any]:
    """Yield tables of exactly `size` rows except the last, since results depend on batches."""
    held: list[Any] = []
    try:
        for batch in batches:
            held.append(batch)
            table = pa.Table.from_batches(held)
            while len(table) >= size:
                yield table.slice(0, size)
                table = table.slice(size)
            held = table.to_batches()
    except _CORRUPT as error:
        raise unreadable(path, error) from error
    if held:
        yield pa.Table.from_batches(held)


def unreadable(path: Path, error: Exception) -> DataError:
    """Return a one-sentence error for a file that its reader refuses."""
    return DataError(f"{path}: it cannot be read ({why_unreadable(error)}); write it again.")
