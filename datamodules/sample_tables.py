"""Samples of a parquet or CSV table, in batches.

The samples are in the first of these: the column of pictures or files that the run's own table had
(`data.picture_column`); a column `image` or `img` (a picture's bytes, or a struct with a field
`bytes`); a column `path` or `file` (a picture's file, relative to the table's folder); a column of
lists of numbers; all columns of numbers except names, `sample`, `label`, `client`, `cluster`,
`confidence`, the run's own labels and clients, and pandas' index. Names are in `name`, `id` or the
like, or the files' paths, clients in `data.client_column` or `client`; in CSV these are text.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import filterfalse
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from coterie.config.component import Component
from coterie.config.loading import load_component
from coterie.config.parquet_growth import ParquetTable
from coterie.contract.data import SampleBatch
from coterie.datamodules.csv_files import is_index, open_csv, why_unreadable
from coterie.datamodules.custom_data import Range
from coterie.datamodules.fitting import Fitting
from coterie.datamodules.left_out_columns import TEXT, Cells, tell_left_out, type_of
from coterie.errors import DataError, listed

_PICTURES, _FILES = ("image", "img"), ("path", "file")
_NAMES = ("name", "id", "sample_id", "file_name", "filename")
CLIENT = "client"
"""The column of the samples' clients."""
_TOLD = frozenset({"label", CLIENT, "cluster", "confidence"})
_NO_FEATURES = frozenset({*_NAMES, *_TOLD, "sample"})
_CORRUPT = (pa.ArrowException, OSError, ValueError)
"""What Arrow raises for damaged bytes; a name that is not UTF-8 is a ValueError."""
_BYTES = frozenset({"binary", "large_binary", "binary_view"})


class TableColumns(NamedTuple):
    """The columns of the table that a run trained on; empty if it trained on no table.

    Attributes:
        features: Columns of numbers; empty if nobody has named them.
        ranges: Of some of these, the numbers that become 0 and 1.
    """

    picture: str | None = None
    label: str | None = None
    client: str | None = None
    features: tuple[str, ...] = ()
    ranges: Mapping[str, tuple[float, float]] = MappingProxyType({})

    @property
    def named(self) -> tuple[str, ...]:
        """The columns of pictures, labels and clients."""
        return tuple(name for name in (self.picture, self.label, self.client) if name is not None)

    def client_in(self, names: Collection[str]) -> str | None:
        """Return the column of clients of a table with these columns, or None."""
        return next((name for name in (self.client, CLIENT) if name in names), None)


NO_COLUMNS = TableColumns()


class _Ranges(Component):
    feature_ranges: Mapping[str, Range] = {}


def columns_as_trained(data: object) -> TableColumns:
    """Return the columns that the section `data` of a run's stored config names.

    Raises:
        ConfigError: If its ranges are none.
    """
    keys = data.get("source", data) if isinstance(data, Mapping) else {}
    given = {name: keys.get(f"{name}_column") for name in ("picture", "label", "client")}
    named = {name: column for name, column in given.items() if isinstance(column, str)}
    features = keys.get("feature_columns")
    own = tuple(map(str, features)) if isinstance(features, list | tuple) else ()
    ranges = load_component(_Ranges, {"feature_ranges": keys.get("feature_ranges") or {}}, "data.")
    return TableColumns(**named, features=own, ranges=ranges.feature_ranges)


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
        text = (*_NAMES, *_FILES, CLIENT, *columns.named)
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
    """Return the first cells of a column, of several with that name the first."""
    found = (rows.column(rows.schema.get_all_field_indices(name)[0]) for rows in batches)
    return next(found, pa.array([], pa.string()))


def table_batches(
    path: Path, table: OpenTable, fitting: Fitting, batch_size: int, own: TableColumns
) -> tuple[Iterator[SampleBatch], bool]:
    """Return the batches, and whether samples have names.

    Raises:
        DataError: If there are no rows, no columns with samples, or columns of a wrong type or with
            the same name; also later, from the batches.
    """
    if table.rows == 0:
        raise DataError(f"{path}: it holds no row; give at least one.")
    client = own.client_in(table.schema.names)
    columns = _columns(path, table, own)._replace(client=client, own=own)
    if columns.kind == "numbers" and (absent := [*filterfalse(columns.names.count, own.ranges)]):
        raise DataError(f"{path}: it has no feature {absent[0]}, which the run had; add it.")
    name = next((n for n in _NAMES if n in table.schema.names), None)
    name = columns.names[0] if name is None and columns.kind == "file" else name
    used = [*columns.names, *filter(None, (client, name))]
    _check_once(path, table.schema, used)
    _check_type(path, table.schema, columns)

    def batches() -> Iterator[SampleBatch]:
        start = 0
        _measure_sites(path, table, columns, fitting)
        for rows in _rebatched(path, table.read(list(dict.fromkeys(used))), batch_size):
            try:
                names = None if name is None else _texts(rows[name])
                clients = None if client is None else _texts(rows[client])
                samples = _samples(path, rows, columns, fitting, start)
            except (pa.ArrowException, UnicodeDecodeError) as error:
                raise unreadable(path, error) from error
            yield SampleBatch(samples, names, clients)
            start += len(rows)
        if not start:
            raise DataError(f"{path}: it holds no row; give at least one.")
        fitting.warn()

    return batches(), name is not None


def _texts(column: Any) -> tuple[str, ...]:
    return tuple("" if value is None else str(value) for value in column.to_pylist())


class _Columns(NamedTuple):
    """The kind of the samples, their columns, that of their clients, and those of training."""

    kind: Literal["picture", "file", "list", "numbers"]
    names: list[str]
    client: str | None = None
    own: TableColumns = NO_COLUMNS


def _columns(path: Path, table: OpenTable, own: TableColumns) -> _Columns:
    schema, names = table.schema, table.schema.names
    if own.picture is not None and own.picture in names:
        kind = schema.field(own.picture).type
        if not _is_list(kind):
            return _Columns("file" if str(_plain(kind)) in TEXT else "picture", [own.picture])
    if own.features:
        return _Columns("numbers", feature_columns(path, schema, own, table.start))
    pictures = [name for name in _PICTURES if name in names]
    files = [name for name in _FILES if name in names]
    lists = [f.name for f in schema if _is_list(f.type) and is_number(f.type.value_type)]
    if pictures:
        return _Columns("picture", pictures[:1])
    if files:
        return _Columns("file", files[:1])
    if lists:
        return _Columns("list", lists[:1])
    if numbers := feature_columns(path, schema, own, table.start):
        return _Columns("numbers", numbers)
    raise DataError(
        f"{path}: it has the columns {', '.join(names)}; it needs image, path, a list of numbers, "
        "or columns of numbers."
    )


def feature_columns(path: Path, schema: Any, own: TableColumns, cells: Cells | None) -> list[str]:
    """Return the columns of numbers that are features: those that `own` names, or else all.

    Raises:
        DataError: If one that is named is missing, or is not of numbers.
    """
    if not own.features:
        found = [f.name for f in schema if is_number(f.type) and not _is_no_feature(f.name, own)]
        if found:
            tell_left_out(path, schema, {*found, *own.named, *_TOLD}, cells)
        return found
    for name in own.features:
        if name not in schema.names:
            raise DataError(f"{path}: it has no column {name}, which is a feature; add it.")
        if not is_number(schema.field(name).type):
            raise DataError(
                f"{path}: its column {name} is of type {type_of(schema.field(name), cells)}, and "
                "features are numbers; clean it, or leave it out of data.feature_columns."
            )
    return list(own.features)


def feature_matrix(
    path: Path, columns: Mapping[str, Any], own: TableColumns, start: int = 0
) -> NDArray[Any]:
    """Return columns of numbers side by side, (n, columns), in their ranges.

    Args:
        path: The table, for errors.
        columns: Name to Arrow's column.
        own: Has the ranges.
        start: The number of the first row.

    Raises:
        DataError: If a cell is empty.
    """
    _check_filled(path, columns, start)
    return np.column_stack([_ranged(values, own.ranges.get(n)) for n, values in columns.items()])


def _ranged(values: Any, range_: tuple[float, float] | None) -> NDArray[Any]:
    """Return a column's numbers, of which those of a range, if there is one, become 0 and 1."""
    numbers: NDArray[Any] = values.to_numpy()
    if range_ is None:
        return numbers
    low, high = range_
    return (numbers.astype(np.float64) - low) / (high - low)


def _check_filled(path: Path, columns: Mapping[str, Any], start: int) -> None:
    """Raise a DataError if cells of columns are empty."""
    gaps = [
        f"{name} in {values.null_count:,} of {len(values):,} rows (row "
        f"{start + values.is_null().index(True).as_py():,} first)"
        for name, values in columns.items()
        if values.null_count
    ]
    if gaps:
        raise DataError(f"{path}: cells are empty: {listed(gaps)}; fill or drop such rows.")


def _is_no_feature(name: str, own: TableColumns) -> bool:
    """Return whether a column of numbers is not a feature, such as the index of pandas."""
    return name in _NO_FEATURES or name in own.named or is_index(name)


def _check_once(path: Path, schema: Any, used: list[str]) -> None:
    for name in used:
        count = schema.names.count(name)
        if count > 1:
            raise DataError(f"{path}: it has {count} columns {name}; give each a name of its own.")


def _check_type(path: Path, schema: Any, columns: _Columns) -> None:
    """Refuse files that are not text and pictures that are not bytes."""
    name = columns.names[0]
    given = schema.field(name).type
    if columns.kind == "file":
        fits = str(_plain(given)) in TEXT
        wanted = "give the files' paths as text"
    elif columns.kind == "picture":
        inside = pa.types.is_struct(given) and given.get_field_index("bytes") >= 0
        kind = _plain(given.field("bytes").type if inside else given)
        fits = str(kind) in _BYTES or pa.types.is_fixed_size_binary(kind)
        wanted = "give pictures' bytes, a struct with a field bytes, or name a column of paths path"
    else:
        return
    if not fits:
        raise DataError(f"{path}: {name} is of type {given}; {wanted}.")


def _plain(kind: Any) -> Any:
    """Return the value type of a dictionary-encoded column, or else the type itself."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _measure_sites(path: Path, table: OpenTable, columns: _Columns, fitting: Fitting) -> None:
    """Measure the levels of each client's files, if the run had levels of sites."""
    if columns.kind != "file" or not fitting.measures:
        return
    found: list[tuple[Path, str]] = []
    try:
        for rows in table.read([*columns.names, *filter(None, [columns.client])]):
            files = rows.column(columns.names[0]).to_pylist()
            pairs = zip(files, _sites(rows.column, columns, len(files)), strict=True)
            found += [(path.parent / file, site) for file, site in pairs if file]
    except _CORRUPT as error:
        raise unreadable(path, error) from error
    fitting.measure_sites([file for file, _ in found], [site for _, site in found])


def _sites(column: Callable[[str], Any], columns: _Columns, count: int) -> tuple[str, ...]:
    """Return each row's client; "" where the table has none."""
    return ("",) * count if columns.client is None else _texts(column(columns.client))


def _samples(
    path: Path, rows: Any, columns: _Columns, fitting: Fitting, start: int
) -> NDArray[np.generic]:
    if columns.kind == "numbers":
        matrix = feature_matrix(path, {n: rows[n] for n in columns.names}, columns.own, start)
        return fitting.array(matrix, f"{path}, columns {listed(columns.names)}")
    values = rows[columns.names[0]]
    _check_filled(path, {columns.names[0]: values}, start)
    if columns.kind == "list":
        return fitting.array(_matrix(path, columns.names[0], values), str(path))
    if columns.kind == "file":
        files = [path.parent / file for file in values.to_pylist()]
        pictures = fitting.levelled(files, _sites(rows.column, columns, len(files)))
        return fitting.pictures(pictures, [str(file) for file in files])
    encoded = pc.struct_field(values, "bytes") if pa.types.is_struct(values.type) else values
    names = [f"{path}, row {start + row}" for row in range(len(rows))]
    return fitting.pictures([bytes(picture or b"") for picture in encoded.to_pylist()], names)


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


def _is_list(kind: Any) -> bool:
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def is_number(kind: Any) -> bool:
    """Return whether a column of this Arrow type holds numbers; booleans are none."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def unreadable(path: Path, error: Exception) -> DataError:
    """Return a one-sentence error for a file that its reader refuses."""
    return DataError(f"{path}: it cannot be read ({why_unreadable(error)}); write it again.")
