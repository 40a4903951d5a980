"""Pictures listed in a table: parquet or CSV, with their paths or bytes, labels and clients."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from pydantic import Field

from coterie.errors import DataError
from datamodules.base import Half
from datamodules.decoding import Picture
from datamodules.own_data import OwnData, PicturesConfig, number_classes, number_owners
from datamodules.source import Source, source_from_pictures


class Manifest(OwnData["Manifest.Config"]):
    """Pictures listed in a .csv or .parquet file, one per row.

    A picture is a path relative to the file's folder, or in parquet its bytes: a binary column, or
    a struct with a field `bytes` as on the Hugging Face hub.
    """

    class Config(PicturesConfig):
        """Config of a manifest."""

        picture_column: str = Field(default="path", min_length=1)
        """Column of paths or bytes."""
        label_column: str | None = None
        """Column of labels, text or integers, empty or -1 where unknown; by default none."""
        client_column: str | None = None
        """Column of clients, for `partition=by_client`; by default none."""

    def open_half(self, half: Half) -> Source:
        """Read the table; pictures are read on demand."""
        config = self.config
        table = self._read_table()
        pictures, names = self._pictures(table[config.picture_column])
        source = source_from_pictures(pictures, names, config.form)
        if config.label_column is not None:
            values = table[config.label_column].to_pylist()
            labels, classes = number_classes(values, self._name(config.label_column))
            source = replace(source, labels=labels, classes=classes)
        if config.client_column is not None:
            values = table[config.client_column].to_pylist()
            owners, owner_names = number_owners(values, self._name(config.client_column))
            source = replace(source, owners=owners, owner_names=owner_names)
        return source

    def _read_table(self) -> Any:
        config = self.config
        wanted = {
            "picture_column": config.picture_column,
            "label_column": config.label_column,
            "client_column": config.client_column,
        }
        if self.path.exists() and not self.path.is_file():
            raise DataError(f"data.path={self.path}: it is no file; give a .csv or .parquet.")
        try:
            table = self._parse()
        except FileNotFoundError as error:
            raise DataError(
                f"data.path={self.path}: there is no such file; give a .csv or .parquet."
            ) from error
        except (pa.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0]
            raise DataError(
                f"data.path={self.path}: it cannot be read ({reason}); give a .csv or .parquet."
            ) from error
        for key, column in wanted.items():
            if column is not None and table.column_names.count(column) != 1:
                raise DataError(
                    f"data.{key}={column}: {self.path} has the columns "
                    f"{', '.join(table.column_names)}; name one of them."
                )
        if not table.num_rows:
            raise DataError(f"data.path={self.path}: it lists no pictures; add rows.")
        return table

    def _parse(self) -> Any:
        if self.path.suffix != ".csv":
            return pq.read_table(self.path)
        # Only empty cells are missing, since a class may be called NA. Clients and files are text,
        # so that 007 keeps its zeros.
        names = (self.config.picture_column, self.config.client_column)
        text = {name: pa.string() for name in names if name is not None}
        options = pa.csv.ConvertOptions(
            column_types=text, null_values=[""], strings_can_be_null=True
        )
        return pa.csv.read_csv(self.path, convert_options=options)

    def _pictures(self, column: Any) -> tuple[list[Picture], list[str]]:
        """Each row's picture, and its name in errors."""
        if pa.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:
            column = pc.struct_field(column, "bytes")
        values = column.to_pylist()
        if None in values:
            where = self._name(self.config.picture_column)
            raise DataError(f"{where} names no picture in row {values.index(None)}; give one.")
        if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
            return values, [f"row {row} of {self.path}" for row in range(len(values))]
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            raise DataError(
                f"{self._name(self.config.picture_column)} is of type {column.type}; give paths "
                "or bytes."
            )
        paths = [self.path.parent / Path(value) for value in values]
        return list(paths), [str(path) for path in paths]

    def _name(self, column: str) -> str:
        return f"{self.path}, column {column},"
