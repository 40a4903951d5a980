"""Reads and writes a split as a file, for other runs and tools with the same clients.

A parquet file with the columns `sample` (int64, row of the data set) and `client` (int32), and a
row per held sample. Its metadata identify the data set: name, number of samples, digest of labels.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from coterie.config.parquet_growth import ParquetTable
from coterie.config.regular_files import open_regular
from coterie.contract.data import DataArrays, Indices
from coterie.errors import DataError
from coterie.tracking.atomic import replacing

_COLUMNS = {"sample": pa.int64(), "client": pa.int32()}


def write_partition(path: Path, parts: Sequence[Indices], data: DataArrays) -> None:
    """Write each client's rows."""
    rows = np.concatenate(parts)
    clients = np.repeat(np.arange(len(parts), dtype=np.int32), [len(part) for part in parts])
    schema = pa.schema(list(_COLUMNS.items()), metadata=_fingerprint(data))
    with replacing(path) as temporary:
        pq.write_table(pa.table({"sample": rows, "client": clients}, schema=schema), temporary)


def read_partition(path: Path, data: DataArrays) -> list[Indices]:
    """Read each client's rows, sorted.

    Raises:
        DataError: If the file is missing, in another format, or of another data set.
    """
    try:
        with open_regular(path) as file:
            opened = ParquetTable(file, os.fstat(file.fileno()).st_size)
            given, known = opened.schema, opened.schema.metadata or {}
            table = opened.read(list(_COLUMNS)) if _has_columns(given) else None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(
            f"partition.path={path}: it cannot be read as parquet; write it with "
            "`coterie partition`."
        ) from error
    if table is None:
        raise DataError(
            f"partition.path={path}: its columns are {', '.join(given.names)}; it needs "
            "sample (int64) and client (int32), as `coterie partition` writes them."
        )
    _check_data(path, known, data)
    if table["sample"].null_count or table["client"].null_count:
        raise DataError(f"partition.path={path}: an entry is missing; make it again.")
    rows, clients = table["sample"].to_numpy(), table["client"].to_numpy()
    _check_rows(path, rows, clients, len(data.samples))
    order = np.lexsort((rows, clients))
    cuts = np.searchsorted(clients[order], np.arange(1, clients.max() + 1))
    return np.split(rows[order], cuts)


def _has_columns(schema: Any) -> bool:
    given = dict(zip(schema.names, schema.types, strict=True))
    return given == _COLUMNS and len(schema.names) == len(given)


def _fingerprint(data: DataArrays) -> dict[bytes, bytes]:
    labels = b"" if data.labels is None else np.ascontiguousarray(data.labels, "<i8").tobytes()
    return {
        b"data": data.name.encode(),
        b"samples": str(len(data.samples)).encode(),
        b"labels": hashlib.sha256(labels).hexdigest().encode(),
    }


def _check_data(path: Path, found: dict[bytes, bytes], data: DataArrays) -> None:
    for key, here in _fingerprint(data).items():
        there = found.get(key, b"nothing")
        if there != here:
            what = {b"data": "the data set's name", b"samples": "the number of samples"}
            raise DataError(
                f"partition.path={path}: it was made for other data ("
                f"{what.get(key, 'the digest of the labels')} is {_short(there)} there and "
                f"{_short(here)} here); read the same samples (data.split, data.limit), or make it "
                "again with `coterie partition`."
            )


def _short(value: bytes) -> str:
    text = value.decode()
    return text if len(text) < 64 else f"{text[:8]}…"


def _check_rows(path: Path, rows: Indices, clients: Indices, size: int) -> None:
    if not len(rows) or clients.min() < 0:
        raise DataError(f"partition.path={path}: clients are numbered from 0; make it again.")
    if clients.max() >= len(rows):
        raise DataError(
            f"partition.path={path}: it has a client {clients.max()}, but with {len(rows)} "
            "samples some client below it has none; number clients from 0 without gaps."
        )
    twice = np.unique(np.stack([clients, rows]), axis=1).shape[1] < len(rows)
    if rows.min() < 0 or rows.max() >= size or twice:
        raise DataError(
            f"partition.path={path}: its samples have to be rows 0..{size - 1}, each at most once "
            "for a client; make it again with `coterie partition`."
        )
