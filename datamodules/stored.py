"""Pictures and tables that stay in their files until a row is asked for."""

import threading
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar, overload

import pyarrow as pa

from coterie.config.arrow_growth import ArrowTable, read_stream
from coterie.config.parquet_growth import ParquetTable
from coterie.contract.data import Indices
from coterie.datamodules.csv_files import is_csv, read_csv
from coterie.datamodules.remote import opened
from coterie.errors import DataError, reason

ItemT = TypeVar("ItemT")


@dataclass(frozen=True)
class FilePart:
    """A range of bytes in a file."""

    path: Path
    offset: int
    size: int

    def read_bytes(self) -> bytes:
        """Return the bytes."""
        with opened(self.path) as file:
            file.seek(self.offset)
            content: bytes = file.read(self.size)
        return content


class Lazy(Sequence[ItemT]):
    """Items that are read when they are indexed; a slice of them is a list."""

    @abstractmethod
    def _item(self, index: int) -> ItemT:
        """Read one item."""

    @overload
    def __getitem__(self, index: int) -> ItemT: ...
    @overload
    def __getitem__(self, index: slice) -> list[ItemT]: ...
    def __getitem__(self, index: int | slice) -> ItemT | list[ItemT]:
        if isinstance(index, slice):
            return [self._item(row) for row in range(*index.indices(len(self)))]
        return self._item(index)


@dataclass(frozen=True)
class Picked(Lazy[ItemT]):
    """Some items of a sequence, each read when it is indexed.

    Attributes:
        rows: Which items, int64 (n,).
    """

    base: Sequence[ItemT]
    rows: Indices

    def __len__(self) -> int:
        return len(self.rows)

    def _item(self, index: int) -> ItemT:
        return self.base[int(self.rows[index])]


@dataclass(frozen=True)
class Chained(Lazy[ItemT]):
    """Two sequences in a row, whose items are read when they are indexed."""

    first: Sequence[ItemT]
    second: Sequence[ItemT]

    def __len__(self) -> int:
        return len(self.first) + len(self.second)

    def _item(self, index: int) -> ItemT:
        cut = len(self.first)
        return self.first[index] if index < cut else self.second[index - cut]


@dataclass
class StoredTable:
    """A table in one or more files, of which columns or single cells are read.

    Arrow files are memory-mapped. Of parquet files the last two row groups that were asked for are
    kept. CSV is read at once.

    Attributes:
        files: The files, in order; all .parquet, .csv, or Arrow streams (.arrow).
        text: Columns of CSV that are text whatever they look like.
    """

    files: tuple[Path, ...]
    text: tuple[str, ...] = ()
    _tables: dict[int, ArrowTable | ParquetTable] = field(
        default_factory=dict, repr=False, compare=False
    )
    _groups: dict[tuple[int, int, str], Any] = field(default_factory=dict, repr=False)
    _lock: Any = field(default_factory=threading.Lock, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without this process's open files."""
        return {"files": self.files, "text": self.text}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    @property
    def schema(self) -> Any:
        """The columns, as the first file has them."""
        return self._open(0).schema

    def __len__(self) -> int:
        return self._ends[-1]

    def column(self, name: str) -> Any:
        """Return a whole column, in the type that the first file gives it."""
        chunks, kind = list[Any](), self.schema.field(name).type
        for number in range(len(self.files)):
            with self._reading(number):
                chunks += self._open(number).column(name).cast(kind).chunks
        return pa.chunked_array(chunks, kind)

    def values(self, name: str) -> list[Any]:
        """Return a whole column as Python's values.

        Raises:
            DataError: If the values are lists or structs, or one is beyond those of Python's type,
                such as a date.
        """
        column = self.column(name)
        if pa.types.is_nested(column.type):
            raise DataError(
                f"{self.files[0]}: its column {name} is of type {column.type}; labels, clients and "
                "paths are whole numbers, booleans or text, so name the right column."
            )
        try:
            found: list[Any] = column.to_pylist()
        except (pa.ArrowException, ArithmeticError, ValueError) as error:
            raise DataError(
                f"{self.files[0]}: its column {name} cannot be read ({reason(error)}); write it "
                "again."
            ) from error
        return found

    def cell(self, name: str, row: int) -> Any:
        """Return one cell as an Arrow scalar."""
        number = bisect_right(self._ends, row)
        place = row - (self._ends[number - 1] if number else 0)
        with self._reading(number):
            opened = self._open(number)
            if isinstance(opened, ArrowTable):
                return opened.column(name)[place]
            group = 0
            while place >= (rows := opened.group_rows[group]):
                place, group = place - rows, group + 1
            return self._group(opened, number, group, name)[place]

    @contextmanager
    def _reading(self, number: int) -> Iterator[None]:
        """Raise a DataError for a file that is damaged behind its header."""
        try:
            yield
        except (pa.ArrowException, OSError, ValueError, LookupError, MemoryError) as error:
            raise DataError(
                f"{self.files[number]}: it cannot be read ({reason(error)}); fetch it again."
            ) from error

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(self._open(number).rows for number in range(len(self.files))))

    def _open(self, number: int) -> ArrowTable | ParquetTable:
        if number not in self._tables:
            self._tables[number] = self._parse(self.files[number])
        return self._tables[number]

    def _parse(self, path: Path) -> ArrowTable | ParquetTable:
        local = isinstance(path, Path)
        if path.suffix == ".arrow":
            source = pa.memory_map(str(path)) if local else pa.py_buffer(path.read_bytes())
            return read_stream(source if local else pa.BufferReader(source))
        if is_csv(path):
            return ArrowTable(read_csv(path, path if local else path.open("rb"), self.text))
        with opened(path):  # it has to be a regular file
            return ParquetTable(path if local else path.open("rb"), path.stat().st_size)

    def _group(self, table: ParquetTable, number: int, group: int, name: str) -> Any:
        key = (number, group, name)
        with self._lock:
            if key not in self._groups:
                while len(self._groups) >= 2:
                    del self._groups[next(iter(self._groups))]
                self._groups[key] = table.read_group(group, name)
            return self._groups[key]


@dataclass(frozen=True)
class CellPictures(Lazy[bytes]):
    """The pictures in a column of bytes, or of structs with a field `bytes` or `path`."""

    table: StoredTable
    column: str

    def __len__(self) -> int:
        return len(self.table)

    def _item(self, index: int) -> bytes:
        cell = self.table.cell(self.column, index)
        if pa.types.is_struct(cell.type):
            cell = cell["bytes"] if cell.is_valid else cell
        return cell.as_py() or b""


@dataclass(frozen=True)
class Names(Lazy[str]):
    """The names of a file's rows: "row 7 of list.parquet"."""

    where: str
    rows: int

    def __len__(self) -> int:
        return self.rows

    def _item(self, index: int) -> str:
        if not -self.rows <= index < self.rows:
            raise IndexError(index)
        return f"row {index % self.rows} of {self.where}"
