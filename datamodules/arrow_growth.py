"""Arrow and parquet files whose compressed columns grow within bounds.

An Arrow file states the length of each compressed buffer, and is read by the messages that were
looked at. A parquet file states that of each column.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from coterie.datamodules.growth import check_growth

_MAGIC = b"ARROW1\0\0"
_BATCHES = {"record batch": (), "dictionary": (1,)}
"""Kinds of messages with data, and the fields of flatbuffers that lead to their record batch."""
_ROWS = 1 << 22
"""Rows that a table of any size may have."""
_ROWS_PER_BYTE = 100


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


def read_stream(source: Any) -> Any:
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
    return table


def open_parquet(source: Any, size: int) -> pq.ParquetFile:
    """Open a parquet file of this many bytes.

    Raises:
        ValueError: If its columns grow too much, or it has too many rows for its size.
        pyarrow.ArrowException: If it is damaged.
    """
    opened = pq.ParquetFile(source)
    known = opened.metadata
    columns = [
        known.row_group(group).column(column)
        for group in range(known.num_row_groups)
        for column in range(known.num_columns)
    ]
    check_growth(size, sum(column.total_uncompressed_size for column in columns))
    check_rows(known.num_rows, size)
    return opened


def check_rows(rows: int, size: int) -> None:
    """Refuse a table of many more rows than its bytes can tell apart.

    Raises:
        ValueError: If so.
    """
    if rows > max(_ROWS, _ROWS_PER_BYTE * size):
        raise ValueError(f"{size} bytes claim {rows} rows")


def _checked(source: Any) -> Iterator[Any]:
    """Return the messages of a stream, the data of which has been looked at."""
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
    """Return where the flatbuffer's offset at a place leads."""
    return place + int(struct.unpack_from("<I", content, place)[0])


def _field(content: memoryview, table: int, number: int) -> int:
    """Return the place of a flatbuffer table's field; 0 if it has none."""
    known = table - struct.unpack_from("<i", content, table)[0]
    size = struct.unpack_from("<H", content, known)[0]
    if 4 + 2 * number >= size:
        return 0
    offset = int(struct.unpack_from("<H", content, known + 4 + 2 * number)[0])
    return table + offset if offset else 0
