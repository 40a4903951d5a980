"""Reads Arrow files, and limits how far compressed buffers and encoded columns grow.

An Arrow file states the length of each compressed buffer, and is read by the messages that were
looked at. A column may then still grow where a value stands once and is referred to by many rows:
in dictionaries, runs and views.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from coterie.config.growth import check_growth, check_rows

_MAGIC = b"ARROW1\0\0"
_BATCHES = {"record batch": (), "dictionary": (1,)}
"""Kinds of messages with data, and the fields of flatbuffers that lead to their record batch."""
_NONE = 8
"""Bytes of a value that is none: a reference, once it is Python's."""
_TEXTS = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
)


@dataclass
class ArrowTable:
    """A table in memory that refuses to return columns that grow too much when decoded.

    Attributes:
        table: The table.
        size: The bytes of its file, from which it may grow; None if it may not be encoded at all.
    """

    table: Any
    size: int | None = None
    _seen: dict[str, int] = field(default_factory=dict, repr=False)

    @property
    def schema(self) -> Any:
        """The columns' names and types."""
        return self.table.schema

    @property
    def rows(self) -> int:
        """The number of rows."""
        return int(self.table.num_rows)

    def column(self, name: str) -> Any:
        """Return a column.

        Raises:
            ValueError: If it, and the others that were asked for, grow too much once decoded.
            pyarrow.ArrowException: If it is damaged.
        """
        if self.size is not None and name not in self._seen:
            self.table[name].validate(full=True)
            found = decoded_size(self.table[name])
            check_growth(self.size, found + sum(self._seen.values()), f" in its column {name}")
            self._seen[name] = found
        return self.table[name]


def read_batch(path: Path) -> Any:
    """Return the first record batch of an Arrow file, mapped into memory.

    Raises:
        ValueError: If it is none, or its buffers grow too much.
        pyarrow.ArrowException: If it is damaged.
    """
    source = pa.memory_map(str(path))
    if source.read(len(_MAGIC)) != _MAGIC:
        raise ValueError("it is not an Arrow file")
    messages = _checked(source)
    schema, batch = next(messages, None), next(messages, None)
    if schema is None or batch is None or schema.type != "schema":
        raise ValueError("it holds no record batch")
    return pa.ipc.read_record_batch(batch, pa.ipc.read_schema(schema))


def read_stream(source: Any) -> ArrowTable:
    """Return the table in an Arrow stream.

    Raises:
        ValueError: If its buffers grow too much, or it has too many rows for its size.
        pyarrow.ArrowException: If it is damaged.
    """
    for _ in _checked(source):
        pass
    source.seek(0)
    table = pa.ipc.open_stream(source).read_all()
    check_rows(table.num_rows, source.size())
    return ArrowTable(table, source.size())


def decoded_size(array: Any) -> int:
    """Return the bytes that an array's values take once dictionaries and runs are written out."""
    if isinstance(array, pa.ChunkedArray):
        return sum(decoded_size(chunk) for chunk in array.chunks)
    if isinstance(array, pa.ExtensionArray):
        return decoded_size(array.storage)
    for tests, size in _ENCODED:
        if any(test(array.type) for test in tests):
            return size(array)
    return int(array.nbytes)


def _in_dictionary(array: Any) -> int:
    return int(pc.sum(pa.array(_sizes(array.dictionary)).take(array.indices)).as_py() or 0)


def _in_runs(array: Any) -> int:
    runs = np.diff(array.run_ends.to_numpy().astype(np.int64), prepend=0)
    return int(runs @ _sizes(array.values))


def _in_struct(array: Any) -> int:
    return sum(decoded_size(array.field(number)) for number in range(array.type.num_fields))


def _in_list_views(array: Any) -> int:
    longest = _sizes(array.values).max(initial=1)
    return int(longest) * int(pc.sum(array.sizes).as_py() or 0)


_Tests = tuple[Callable[[Any], bool], ...]
_LISTS: _Tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_LIST_VIEWS: _Tests = (pa.types.is_list_view, pa.types.is_large_list_view)
_VIEWS: _Tests = (pa.types.is_string_view, pa.types.is_binary_view)
_ENCODED: tuple[tuple[_Tests, Callable[[Any], int]], ...] = (
    ((pa.types.is_dictionary,), _in_dictionary),
    ((pa.types.is_run_end_encoded,), _in_runs),
    ((pa.types.is_struct,), _in_struct),
    (_LISTS, lambda array: decoded_size(array.flatten())),
    (_LIST_VIEWS, _in_list_views),
    (_VIEWS, lambda array: int(_sizes(array).sum())),
    ((pa.types.is_null,), lambda array: _NONE * len(array)),
)
"""How many bytes the values of types have of which one may stand for many, or for no bytes."""


def _sizes(values: Any) -> NDArray[np.int64]:
    """Return an upper bound on the bytes of each value (n,) of an array."""
    kind = values.type
    if any(test(kind) for test in _VIEWS):  # each view begins with its length
        views = np.frombuffer(values.buffers()[1] or b"", np.int32)
        start = 4 * values.offset
        return views[start : start + 4 * len(values) : 4].astype(np.int64)
    if any(test(kind) for test in _TEXTS):
        lengths = pc.binary_length(values).fill_null(0).to_numpy(zero_copy_only=False)
        return np.asarray(lengths, np.int64)
    fixed = pa.types.is_primitive(kind) or pa.types.is_fixed_size_binary(kind)
    # Of other types no value is larger than all of them.
    return np.full(len(values), kind.bit_width // 8 + 1 if fixed else decoded_size(values))


def _checked(source: Any) -> Iterator[Any]:
    """Yield a stream's messages, after checking how much their compressed data grows."""
    packed, whole = 0, 0
    for message in pa.ipc.MessageReader.open_stream(source):
        if message.type in _BATCHES:
            packed += message.body.size
            whole += _inflated(message)
            check_growth(packed, whole)
        yield message


def _inflated(message: Any) -> int:
    """Return the bytes of a message's buffers, uncompressed."""
    content, body = memoryview(message.metadata), memoryview(message.body)
    try:
        place = _table(content, 0)
        for field in (2, *_BATCHES[message.type]):
            place = _table(content, _field(content, place, field))
        if not _field(content, place, 3):  # it is not compressed
            return len(body)
        buffers = _table(content, _field(content, place, 2))
        (count,) = struct.unpack_from("<I", content, buffers)
        total = 0
        for number in range(count):
            start, size = struct.unpack_from("<qq", content, buffers + 4 + 16 * number)
            (stated,) = struct.unpack_from("<q", body, start) if size else (0,)
            total += size if stated == -1 else max(0, stated)  # -1: stored as it is
    except struct.error as error:
        raise ValueError("its messages are damaged") from error
    return total


def _table(content: memoryview, place: int) -> int:
    """Return the position that the flatbuffer's offset at a place points to."""
    return place + int(struct.unpack_from("<I", content, place)[0])


def _field(content: memoryview, table: int, number: int) -> int:
    """Return the place of a flatbuffer table's field; 0 if it has none."""
    known = table - struct.unpack_from("<i", content, table)[0]
    size = struct.unpack_from("<H", content, known)[0]
    if 4 + 2 * number >= size:
        return 0
    offset = int(struct.unpack_from("<H", content, known + 4 + 2 * number)[0])
    return table + offset if offset else 0
