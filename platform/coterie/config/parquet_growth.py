"""Reads parquet files, and limits how far their columns grow.

A file states the bytes of each column before compression. It does not state those behind the
encoding: a dictionary, or the value before, may give a long value to every row for no bytes. Where
such a column could become too large, its values are counted before it is decoded.
"""

import threading
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from coterie.config.arrow_growth import decoded_size
from coterie.config.growth import check_growth, check_rows, most_from
from coterie.config.parquet_footer import check_size_statistics

_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8}
_DICTIONARY = frozenset({"PLAIN_DICTIONARY", "RLE_DICTIONARY"})
_PREFIXES = "DELTA_BYTE_ARRAY"
"""The encoding in which a value begins like the one before."""
_OFFSET = 4
_AT_ONCE, _PIECE = 1 << 16, 1 << 26
"""Rows, and about the bytes, that are counted at a time."""
_HEADER = 32
"""Bytes that hold the first three numbers of a page's header."""
_DICTIONARY_PAGE = 2
_LARGEST = (1 << 31) - 1
"""Bytes of a page."""


class _Leaf(NamedTuple):
    """A column of values, which may be a part of a nested column.

    Attributes:
        number: Its place in the file.
        path: Its name, behind those of the columns around it.
        width: The bytes of a value; 0 for text and bytes.
        listed: Whether a row may have several values.
    """

    number: int
    path: str
    width: int
    listed: bool

    def is_of(self, columns: Sequence[str]) -> bool:
        """Return whether this is one of these columns, or a part of one."""
        return any(self.path == name or self.path.startswith(f"{name}.") for name in columns)


class ParquetTable:
    """A parquet file that refuses to read columns that grow too much when decoded."""

    def __init__(self, source: Any, size: int) -> None:
        """Open a file.

        Args:
            source: Its path, or a file that is open to be read.
            size: Its bytes.

        Raises:
            ValueError: If its columns grow too much, or it has too many rows for its size.
            pyarrow.ArrowException: If it is damaged.
        """
        local = isinstance(source, Path)
        self._source = pa.OSFile(str(source)) if local else pa.PythonFile(source, mode="r")
        self._file, self._size = pq.ParquetFile(self._source), size
        self._known = self._file.metadata
        check_size_statistics(self._source, size, self._file.schema)
        self._lock = threading.Lock()
        self._bytes: dict[tuple[int, _Leaf], int] = {}
        self._bounds: dict[tuple[int, _Leaf], int] = {}
        groups = [self._known.row_group(group) for group in range(self._known.num_row_groups)]
        self.group_rows = [group.num_rows for group in groups]
        numbers = range(self._known.num_columns)
        whole = sum(g.column(number).total_uncompressed_size for g in groups for number in numbers)
        check_growth(size, whole)
        flat = [n for n in numbers if not self._file.schema.column(n).max_repetition_level]
        values = (group.column(number).num_values for group in groups for number in flat)
        check_rows(max(self.rows, sum(self.group_rows), *values, 0), size)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return int(self._known.num_rows)

    @cached_property
    def schema(self) -> Any:
        """The columns' names and types."""
        return self._file.schema_arrow

    def read(self, columns: Sequence[str]) -> Any:
        """Return whole columns as a table.

        Raises:
            ValueError: If they, and the others that were asked for, grow too much.
            pyarrow.ArrowException: If they are damaged.
        """
        for group in range(len(self.group_rows)):
            self._check(group, columns)
        return self._file.read(columns=list(columns))

    def column(self, name: str) -> Any:
        """Return a whole column; raises what `read` does."""
        return self.read([name])[name]

    def read_group(self, group: int, name: str) -> Any:
        """Return a column of one row group; raises what `read` does."""
        self._check(group, [name])
        return self._file.read_row_group(group, columns=[name])[name]

    def batches(
        self, size: int, columns: Sequence[str], encoded: str | None = None
    ) -> Iterator[Any]:
        """Return columns as record batches; raises what `read` does.

        Args:
            size: The most rows of a batch.
            columns: Their names.
            encoded: One of them, of texts. It comes as a dictionary if it can, and may then have
                long texts in any number of rows.
        """
        opened, decoded = self._file, list(columns)
        if encoded is not None and self._can_stay_encoded(encoded):
            opened = pq.ParquetFile(self._source, metadata=self._known, read_dictionary=[encoded])
            decoded.remove(encoded)
        for group in range(len(self.group_rows)):
            self._check(group, decoded)
            yield from opened.iter_batches(size, row_groups=[group], columns=list(columns))

    def _can_stay_encoded(self, name: str) -> bool:
        """Return whether Arrow reads a column as a dictionary."""
        known = [self._known.row_group(group) for group in range(len(self.group_rows))]
        return any(
            leaf.path == name
            and not leaf.width
            and not leaf.listed
            and all(_PREFIXES not in group.column(leaf.number).encodings for group in known)
            for leaf in self._leaves
        )

    @cached_property
    def _leaves(self) -> tuple[_Leaf, ...]:
        """The columns that may grow when decoded: all but those of one number per row."""
        schema, found = self._file.schema, []
        for number in range(self._known.num_columns):
            leaf, listed = schema.column(number), schema.column(number).max_repetition_level > 0
            width = _WIDTHS.get(leaf.physical_type, 0)
            if leaf.physical_type == "FIXED_LEN_BYTE_ARRAY":
                width = leaf.length
            if listed or leaf.physical_type not in _WIDTHS:
                found.append(_Leaf(number, leaf.path, width, listed))
        return tuple(found)

    def _check(self, group: int, columns: Sequence[str]) -> None:
        """Refuse columns of a row group if they, with all columns read before, grow too much."""
        with self._lock:
            for leaf in self._leaves:
                key = (group, leaf)
                if leaf.is_of(columns) and key not in self._bytes:
                    least, most = self._limits(key)
                    self._bytes[key] = most
                    if most > least:
                        self._bounds[key] = least
            if sum(self._bytes.values()) <= most_from(self._size):
                return
            for key in sorted(self._bounds, key=self._bytes.__getitem__, reverse=True):
                self._bytes[key] = self._counted(key, self._bounds.pop(key))
                if sum(self._bytes.values()) <= most_from(self._size):
                    return
            largest = max(self._bytes, key=self._bytes.__getitem__)[1].path
            whole = sum(self._bytes.values())
            self._bytes.clear()  # what was refused is refused again
            self._bounds.clear()
            check_growth(self._size, whole, f" in its column {largest}")

    def _limits(self, key: tuple[int, _Leaf]) -> tuple[int, int]:
        """Return a lower and an upper bound on the decoded bytes of a row group's column."""
        group, leaf = key
        chunk = self._known.row_group(group).column(leaf.number)
        values = max(chunk.num_values, 0 if leaf.listed else self.group_rows[group])
        if leaf.width:
            return values * leaf.width, values * leaf.width
        prefixes = _PREFIXES in chunk.encodings
        longest = chunk.total_uncompressed_size if prefixes else self._dictionary_bytes(chunk)
        least = chunk.total_uncompressed_size if not longest else 0
        least += _OFFSET * values if leaf.listed else 0
        return least, least + values * longest + (chunk.total_uncompressed_size if longest else 0)

    def _dictionary_bytes(self, chunk: Any) -> int:
        """Return the bytes of a column's dictionary, or an upper bound on them.

        It is the first page, whether the file says that there is one or not.
        """
        start = chunk.data_page_offset
        if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
            start = chunk.dictionary_page_offset
        header = self._source.read_at(_HEADER, start)
        numbers = list(_first_numbers(header))
        if len(numbers) == 3 and numbers[0] == _DICTIONARY_PAGE:
            return max(numbers[1:])
        if len(numbers) < 3:
            return _LARGEST
        said = _DICTIONARY & set(chunk.encodings) or chunk.has_dictionary_page
        return int(chunk.total_uncompressed_size) if said else 0

    def _counted(self, key: tuple[int, _Leaf], least: int) -> int:
        """Decode a row group's column and count its bytes; stop once they are too many."""
        group, leaf = key
        chunk = self._known.row_group(group).column(leaf.number)
        prefixes = _PREFIXES in chunk.encodings  # Arrow reads no dictionaries beside it
        if least > most_from(self._size) or (prefixes and leaf.listed):
            return self._bytes[key]
        each = chunk.total_uncompressed_size
        each = max(1, each if prefixes else each // max(1, chunk.num_values))
        opened = pq.ParquetFile(
            self._source,
            metadata=self._known,
            read_dictionary=[] if prefixes else [leaf.path],
        )
        rows, total = min(_AT_ONCE, max(1, _PIECE // each)), 0
        for batch in opened.iter_batches(
            rows, row_groups=[group], columns=[leaf.path], use_threads=False
        ):
            total += sum(decoded_size(column) for column in batch.columns)
            if total > most_from(self._size):
                break
        return total


def _first_numbers(header: bytes) -> Iterator[int]:
    """Return the first three numbers of a page's header in Thrift's compact protocol.

    They are its kind and its bytes before and after compression; fewer if it is written otherwise.
    """
    place = 0
    for _ in range(3):
        if header[place : place + 1] != b"\x15":  # the next field, of 32 bits
            return
        value, shift, place = 0, 0, place + 1
        while place < len(header):
            value |= (header[place] & 0x7F) << shift
            shift, place = shift + 7, place + 1
            if header[place - 1] < 0x80:
                break
        yield value >> 1 ^ -(value & 1)
