"""Samples listed in a table: pictures by path or bytes, or vectors, with labels and clients."""

import logging
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from coterie.contract.data import Indices, Unreadable
from coterie.datamodules.base import Half
from coterie.datamodules.csv_files import is_csv, place_of, why_unreadable
from coterie.datamodules.custom_data import (
    CustomData,
    PicturesConfig,
    Range,
    number_classes,
    number_owners,
)
from coterie.datamodules.left_out_columns import is_numeric, type_of
from coterie.datamodules.remote import opened
from coterie.datamodules.sample_tables import feature_matrix
from coterie.datamodules.source import Samples, Source, source_from_pictures
from coterie.datamodules.spelling import spelled
from coterie.datamodules.stored import CellPictures, Names, StoredTable
from coterie.datamodules.table_columns import TableColumns, feature_columns, is_number
from coterie.errors import DataError, listed

_logger = logging.getLogger(__name__)

_STATE, _SPLITS, _FEATURES = "state.json", "dataset_dict.json", "dataset_info.json"
"""Files of a folder that Hugging Face `datasets` saved."""
_WHOLE = re.compile(r"-?(0|[1-9]\d*)(\.0*|,0)?")
"""A whole number without leading zeros."""
_DECIMAL = re.compile(r"-?(0|[1-9]\d*)([.,]\d*)?([eE][-+]?\d+)?")
_GAPS = frozenset({"nan", "na", "n/a", "#n/a", "<na>", "null", "none"})
"""Texts that programs write for a missing number; a class of other texts may have such a name."""
_PICTURES = frozenset({"file", "image", "img", "filename", "file_name"})
"""Names of columns that are likely of pictures."""
_WORKBOOKS = (".xlsx", ".xls", ".xlsm", ".ods", ".numbers")
_LONGEST = 1 << 24
"""Bytes of such a file that are read."""


class _DataFile(TypedDict):
    """A data file in the metadata of Hugging Face `datasets`."""

    filename: str


class _Description(TypedDict, total=False):
    """The fields that are read from the metadata files of Hugging Face `datasets`."""

    splits: list[str]
    _data_files: list[_DataFile]
    features: dict[str, Any] | None


_HF = TypeAdapter(_Description)


class Manifest(CustomData["Manifest.Config"]):
    """Samples listed in a .csv or .parquet file, or in a folder saved by Hugging Face `datasets`.

    A sample is a picture's path relative to the file's folder, or its bytes: a binary column, or a
    struct with a field `bytes`; or a vector: a list of numbers, or columns of numbers side by side.
    Only what is needed is read of bytes and of lists. A folder may also hold .parquet files.
    """

    class Config(PicturesConfig):
        """Config of a manifest."""

        picture_column: str = Field(default="path", min_length=1)
        """Column of paths, bytes or vectors."""
        feature_columns: tuple[str, ...] | None = None
        """Columns of numbers that are the features of a sample; by default, in a table without the
        column of pictures, all but the index, labels and clients."""
        feature_ranges: Mapping[str, Range] = {}
        """Ranges of features, such as {age: [0, 100]}: each is scaled so that its range becomes
        [0, 1], in the same way at all sites; other features are not scaled."""
        label_column: str | None = None
        """Column of labels, text or integers, empty or -1 if unknown; by default none."""
        client_column: str | None = None
        """Column of clients, for `partition=by_client`; by default none."""

    def has_test(self) -> bool:
        """Return whether it is a folder with the splits `train` and `test`."""
        return all((self.path / half / _STATE).is_file() for half in ("train", "test"))

    def open_half(self, half: Half) -> Source:
        """Open the table; pictures and vectors are read on demand."""
        config = self.config
        path = self.path / half if self.has_test() else self.path
        table = self._table(path)
        source = self._samples(table)
        if config.label_column is not None:
            values = table.values(config.label_column)
            values = _as_numbers(values) if is_csv(path) else values
            name, known = self._name(config.label_column), _class_names(path, config.label_column)
            labels, classes = number_classes(values, name)
            if known and all(rank.isdecimal() and int(rank) < len(known) for rank in classes):
                kept = np.array([*map(int, classes), -1], dtype=np.int64)
                labels, classes = kept[labels], known
            elif half == "test" and self.has_test():
                labels, classes = number_classes(values, name, self.train_classes)
            source = replace(source, labels=labels, classes=classes)
        if config.client_column is not None:
            values = table.values(config.client_column)
            owners, owner_names = number_owners(values, self._name(config.client_column))
            source = replace(source, owners=owners, owner_names=owner_names)
        return self._filled(source) if source.features and self.on_error == "skip" else source

    def _filled(self, source: Source) -> Source:
        """Leave out the rows with features that are empty or not finite."""
        gaps = ~np.isfinite(source.read(np.arange(source.count)))
        rows = np.flatnonzero(gaps.any(axis=1)).tolist()
        if not rows:
            return source
        if len(rows) == source.count:
            raise DataError(
                f"{self.path}: each of its {source.count:,} rows has empty cells; fill some."
            )
        places = [f"{self.path}, {place_of(self.path, row)}" for row in rows]
        empty = [listed([source.features[n] for n in np.flatnonzero(gaps[row])]) for row in rows]
        _logger.warning(
            "%d of %d rows have cells that are empty or not finite and are left out, the first of "
            "them %s.",
            *(len(rows), source.count, places[0]),
        )
        bad = {
            row: Unreadable(place, f"has no number in {names}")
            for row, place, names in zip(rows, places, empty, strict=True)
        }
        return source.left_out(bad)

    def _table(self, path: Path) -> StoredTable:
        config = self.config
        wanted = {
            "label_column": config.label_column,
            "client_column": config.client_column,
        }
        # All of them are text, so that 007 keeps its zeros.
        asked = (config.picture_column, config.label_column, config.client_column)
        text = tuple(name for name in asked if name)
        try:
            table = StoredTable(_files(path), text)
            columns, rows = table.schema.names, len(table)
        except FileNotFoundError as error:
            raise DataError(
                f"data.path={path}: there is no such file; give a .csv or .parquet."
            ) from error
        except (pa.ArrowException, OSError, ValueError) as error:
            raise DataError(
                f"data.path={path}: it cannot be read ({why_unreadable(error)}); give a .csv or "
                ".parquet."
            ) from error
        if not (config.feature_columns or self._has_features(table)):
            wanted["picture_column"] = config.picture_column
        for key, column in wanted.items():
            if column is not None and columns.count(column) > 1:
                raise DataError(
                    f"data.{key}={column}: {path} has {columns.count(column)} columns of that "
                    "name; give each its own."
                )
            if column is not None and column not in columns:
                raise self._absent(key, column, table)
        if not rows:
            raise DataError(f"data.path={path}: it has no rows; add some.")
        return table

    def _absent(self, key: str, column: str, table: StoredTable) -> DataError:
        """Return an error for a table without a column, with the likely cause."""
        fields, path = table.schema, self.path
        cells = table.column if is_csv(path) else None
        if key == "picture_column" and column == _default(self.config, key):
            types = {field.name: type_of(path, field, cells) for field in fields}
            mixed = [f"{name} ({kind})" for name, kind in types.items() if "number" in kind]
            if mixed:
                return DataError(
                    f"data.path={path}: no column has numbers alone: {listed(mixed)}; correct such "
                    "cells, or name a column of files as data.picture_column."
                )
        few = 2 * sum(map(is_numeric, fields.names)) < len(fields)
        rest = "." if few else ", or give the columns names in a first line, if these are values."
        return DataError(
            f"data.{key}={column}: {path} has the columns {listed(fields.names)}; name one of them"
            f"{rest}"
        )

    def _has_features(self, table: StoredTable) -> bool:
        """Return whether the samples are columns of numbers, since the table has no pictures."""
        names, given = table.schema.names, self.config.picture_column
        usual = given == _default(self.config, "picture_column")
        found = usual and given not in names and any(map(is_number, table.schema.types))
        likely = [f.name for f in table.schema if f.name in _PICTURES and not is_number(f.type)]
        if found and likely:
            raise DataError(
                f"data.path={self.path}: the column {likely[0]} may be of pictures; give "
                f"data.picture_column={likely[0]}, or data.feature_columns=[…] for numbers."
            )
        return found

    def _features(self, table: StoredTable) -> Source:
        """Return the columns of numbers side by side."""
        config = self.config
        features, ranges = config.feature_columns or (), config.feature_ranges
        own = TableColumns(None, config.label_column, config.client_column, features, ranges)
        cells = table.column if is_csv(self.path) else None
        names = feature_columns(self.path, table.schema, own, cells)
        if not names:
            raise DataError(
                f"{self.path}: none of its columns of numbers is a feature by its name; give them "
                "names in the first line, or choose data.feature_columns=[…]."
            )
        if unknown := [name for name in ranges if name not in names]:
            raise DataError(
                f"data.feature_ranges: {self.path} has no feature {unknown[0]}; its features are "
                f"{listed(names)}."
            )
        if not features:
            _logger.warning(
                "%s: its features are the columns %s; data.feature_columns=[…] takes others.",
                *(self.path, listed(names)),
            )
        columns = {name: table.column(name) for name in names}
        skip = "data.on_error=skip"
        matrix = feature_matrix(self.path, columns, own, skip=skip, gaps=self.on_error == "skip")
        matrix = matrix.astype(np.float32)
        return Source(count=len(matrix), read=matrix.__getitem__, features=(*names,))

    def _samples(self, table: StoredTable) -> Source:
        config, column = self.config, self.config.picture_column
        if config.feature_columns or self._has_features(table):
            return self._features(table)
        kind = table.schema.field(column).type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        inside = pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0
        if inside:
            kind = kind.field("bytes").type
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            names = Names(str(self.path), len(table))
            return source_from_pictures(CellPictures(table, column), names, config.pixel_format)
        if _is_list(kind) and not inside:
            return _vectors(table, column, self._name(column))
        if inside or not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            given = table.schema.field(column).type
            raise DataError(
                f"{self._name(column)} is of type {given}; give paths, bytes or lists of numbers."
            )
        values = table.values(column)
        if None in values:
            where = self._name(column)
            raise DataError(f"{where} names no picture in row {values.index(None)}; give one.")
        folder = self.path.parent
        try:
            paths = [_beside(folder, value) for value in values]
        except ValueError as error:  # the table lies at a URL
            raise DataError(f"{self._name(column)} names a URL; give paths beside it.") from error
        shown = [spelled(str(path)) for path in paths]
        source = source_from_pictures(paths, shown, config.pixel_format)
        return replace(source, folder=spelled(str(folder)))

    def _name(self, column: str) -> str:
        return f"{self.path}, column {column},"


def _as_numbers(values: list[Any]) -> list[Any]:
    """Return cells of CSV as integers if all are; pandas writes them with .0 beside gaps.

    Text stays text where one of them has zeros in front, which are a name's.
    """
    cells = [value.strip() if value else "" for value in values]
    cells = ["" if cell.lower() in _GAPS else cell for cell in cells]
    given = [cell for cell in cells if cell]
    if given and all(map(_WHOLE.fullmatch, given)):
        return [int(re.split("[.,]", cell)[0]) if cell else None for cell in cells]
    if given and all(map(_DECIMAL.fullmatch, given)):  # fractions are measurements, not classes
        return [float(cell.replace(",", ".")) if cell else None for cell in cells]
    return values


def _beside(folder: Any, value: str) -> Any:
    """Return the file that a table names; accept Windows paths and either Unicode form."""
    path = folder / value
    if not isinstance(path, Path) or (value.isascii() and "\\" not in value) or path.exists():
        return path
    forward = value.replace("\\", "/")
    tried = (
        forward,
        *(unicodedata.normalize(pixel_format, forward) for pixel_format in ("NFC", "NFD")),
    )
    return next((folder / name for name in tried if (folder / name).exists()), path)


def _default(config: Manifest.Config, key: str) -> Any:
    return type(config).model_fields[key].default


def _files(path: Path) -> tuple[Path, ...]:
    """Return the files of a table."""
    if path.suffix.lower() in _WORKBOOKS:
        raise ValueError("it is a workbook; save its sheet as CSV")
    if path.is_file():
        return (path,)
    if not path.exists():
        raise FileNotFoundError(path)
    if not path.is_dir():
        raise ValueError("it is not a regular file")
    if (path / _SPLITS).is_file():
        splits = _description(path / _SPLITS).get("splits", [])
        raise ValueError(f"it has the splits {', '.join(splits)}; name the folder of one")
    if (path / _STATE).is_file():
        state = _description(path / _STATE)
        names = [entry["filename"] for entry in state.get("_data_files", [])]
        found = [path / name for name in names if PurePath(name).name == name]
        if not found or len(found) < len(names):
            raise ValueError(f"{_STATE} names no files of the folder")
    else:
        found = sorted(path.glob("*.parquet"))
    if not found:
        raise ValueError("it is a folder without .parquet files")
    if other := [file.name for file in found if not file.is_file()]:
        raise ValueError(f"{other[0]} is missing or not a regular file")
    return tuple(found)


def _description(path: Path) -> _Description:
    """Read a metadata file of Hugging Face `datasets`, unless it is larger than they write."""
    with opened(path) as file:
        content = file.read(_LONGEST)
    try:
        return _HF.validate_json(content)
    except ValidationError as error:
        raise ValueError(f"{path.name} is not as Hugging Face datasets writes it") from error


def _class_names(path: Path, column: str) -> tuple[str, ...]:
    """Return the names of classes that Hugging Face `datasets` has stored, if any."""
    if not (path / _FEATURES).is_file():
        return ()
    try:
        features = _description(path / _FEATURES).get("features") or {}
    except (OSError, ValueError) as error:
        raise DataError(f"data.path={path}: {error}; save the data set again.") from error
    feature = features.get(column)
    names: Any = feature.get("names") if isinstance(feature, dict) else None
    whole = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return tuple(names) if whole else ()


def _is_list(kind: Any) -> bool:
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    numbers = any(test(kind) for test in tests) and kind.value_type
    return bool(numbers and is_number(numbers))


def _vectors(table: StoredTable, column: str, name: str) -> Source:
    """Return a source of lists of numbers, read row by row."""

    def vector(row: int) -> Any:
        cell = table.cell(column, row)
        return (
            np.empty(0, np.float32)
            if not cell.is_valid
            else cell.values.to_numpy(zero_copy_only=False)
        )

    width = len(vector(0))

    def read(rows: Indices) -> Samples:
        found = np.empty((len(rows), width), np.float32)
        for place, row in enumerate(rows.tolist()):
            values = vector(row)
            if len(values) != width or not width:
                raise DataError(
                    f"{name} has {width} numbers in row 0, but {len(values)} in row {row}; make "
                    "them all one length."
                )
            found[place] = values
        return found

    return Source(count=len(table), read=read)
