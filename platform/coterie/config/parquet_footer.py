"""Checks the size statistics in a parquet file's footer, since bad ones make Arrow abort.

Arrow's C++ raises an exception for a column whose histograms of levels have another length than
its schema says, and Python's `RowGroupMetaData.column` lets it through to `std::terminate`. So the
footer, in Thrift's compact protocol, is looked through for them first.
"""

from collections.abc import Iterator
from typing import Any

_TAIL = 8
"""Bytes behind the footer: its length, and "PAR1"."""
_STOP, _TRUE, _FALSE, _BYTE = range(4)
_DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(7, 13)
"""Types of Thrift's compact protocol; the others are integers of any length."""
_GROUPS, _CHUNKS, _COLUMN, _SIZES = 4, 1, 3, 16
"""Fields of FileMetaData, RowGroup, ColumnChunk and ColumnMetaData (parquet.thrift)."""
_BYTES, _REPETITIONS, _DEFINITIONS = 1, 2, 3
"""Fields of SizeStatistics."""


def check_size_statistics(source: Any, size: int, schema: Any) -> None:
    """Refuse statistics of sizes that do not fit the schema.

    Args:
        source: The open file.
        size: Its bytes.
        schema: Its `pyarrow.parquet.ParquetSchema`.

    Raises:
        ValueError: If a column has others, or the footer is damaged.
    """
    source.seek(size - _TAIL)
    length = int.from_bytes(source.read(4), "little")
    source.seek(max(0, size - _TAIL - length))
    footer = _Footer(source.read(length))
    try:
        for _ in footer.elements(_GROUPS):
            for number in footer.elements(_CHUNKS):
                for _ in footer.fields(_COLUMN, _STRUCT):
                    _check(footer, schema, number)
    except (IndexError, RecursionError) as error:
        raise ValueError("its footer is damaged") from error


def _check(footer: "_Footer", schema: Any, number: int) -> None:
    for _ in footer.fields(_SIZES, _STRUCT):
        column = schema.column(number)
        levels = {
            _REPETITIONS: column.max_repetition_level,
            _DEFINITIONS: column.max_definition_level,
        }
        for field, kind in footer.all_fields():
            if field == _BYTES and column.physical_type != "BYTE_ARRAY":
                raise ValueError(f"it counts the bytes of {column.path}, which has numbers")
            if field in levels and kind == _LIST:
                count, inside = footer.header()
                footer.skip_each(count, inside)
                if count not in (0, levels[field] + 1):
                    raise ValueError(f"its statistics of {column.path} do not fit its schema")
            else:
                footer.skip(kind)


class _Footer:
    """Reader of Thrift's compact protocol, from the start of a struct."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def fields(self, wanted: int, of: int) -> Iterator[int]:
        """Stop at each field of a struct with this number and type, and skip the others.

        Whoever is given one has to read it.
        """
        for field, kind in self.all_fields():
            if field == wanted and kind == of:
                yield kind
            else:
                self.skip(kind)

    def all_fields(self) -> Iterator[tuple[int, int]]:
        """Return number and type of a struct's fields; each has to be read before the next."""
        field = 0
        while (head := self._byte()) != _STOP:
            field = field + (head >> 4) if head >> 4 else self._zigzag()
            yield field, head & 15

    def elements(self, wanted: int) -> Iterator[int]:
        """Stop at each struct in a struct's field of this number, a list, and skip other fields.

        Yields:
            Its place in the list; whoever is given it has to read the struct.
        """
        for _ in self.fields(wanted, _LIST):
            count, inside = self.header()
            if count and inside != _STRUCT:
                raise ValueError("its footer is damaged")
            yield from range(count)

    def header(self) -> tuple[int, int]:
        """Return the length and the type of a list."""
        head = self._byte()
        return (head >> 4 if head >> 4 < 15 else self._varint()), head & 15

    def skip(self, kind: int) -> None:
        """Read over a value."""
        if kind in (_TRUE, _FALSE):
            return
        if kind == _BYTE:
            self._at += 1
        elif kind == _DOUBLE:
            self._at += 8
        elif kind == _BINARY:
            length = self._varint()
            self._at += length
        elif kind in (_LIST, _SET):
            self.skip_each(*self.header())
        elif kind == _STRUCT:
            for _, inner in self.all_fields():
                self.skip(inner)
        elif kind == _MAP:
            raise ValueError("its footer has a map, which parquet does not allow")
        else:
            self._varint()

    def skip_each(self, count: int, kind: int) -> None:
        """Read over a list's elements."""
        if count > len(self._content):
            raise ValueError("its footer is damaged")
        for _ in range(count):
            self.skip(_BYTE if kind in (_TRUE, _FALSE) else kind)

    def _byte(self) -> int:
        self._at += 1
        return self._content[self._at - 1]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            part = self._byte()
            value |= (part & 127) << shift
            if part < 128:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("its footer is damaged")

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
