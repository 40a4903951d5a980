"""Shards: a data set as memory-mapped Arrow files of pictures or vectors, with an index.

A folder holds `index.json` and `shard-00000.arrow`, …, Arrow IPC files of one record batch each,
with the columns `sample` (a picture's own bytes, or float32 features), `label` and `client` (int64,
-1 where unknown) and `name`. Rows are numbered over all shards, in order. `index.json` is written
last, so that a folder with one is whole.
"""

import json
import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt, model_validator

from coterie.config import regular_files
from coterie.config.arrow_growth import read_batch
from coterie.config.component import Component
from coterie.config.loading import load_component
from coterie.config.plain_files import read_json
from coterie.contract.data import Indices
from coterie.datamodules.remote import cached, writing
from coterie.datamodules.stored import Lazy
from coterie.errors import ConfigError, DataError, reason

INDEX = "index.json"
_MOST_ROWS, _LONGEST = 1 << 40, (1 << 31) - 1
"""The most samples of a shard, and the longest side or vector."""
_COLUMNS = ["sample", "label", "client", "name"]
Name = Annotated[str, Field(pattern=r"^shard-\d{5,}\.arrow$")]


class ShardEntry(Component):
    """One shard of the index."""

    file: Name
    """The file, beside the index."""
    rows: Annotated[int, Field(ge=1, le=_MOST_ROWS)]
    """How many samples it holds."""
    digest: str
    """SHA-256 of the file, which identifies a copy of it."""


class ShardIndex(Component):
    """The content of `index.json`."""

    format: Literal[1] = 1
    """The version of the layout."""
    kind: Literal["pictures", "vectors"]
    """What the samples are."""
    shape: tuple[Annotated[int, Field(ge=1, le=_LONGEST)], ...] | None
    """(height, width) if all pictures agree, (features,) of vectors; else null."""
    modes: Mapping[str, NonNegativeInt] = {}
    """The number of pictures of each mode, by Pillow's name of the mode."""
    oblong: NonNegativeInt = 0
    """The number of pictures that are not square."""
    dark: NonNegativeInt = 0
    """The number of 16-bit pictures that seem to have 12 bits."""
    classes: tuple[str, ...] = ()
    """The names of the classes; empty without labels."""
    clients: tuple[str, ...] = ()
    """The names of the clients; empty if unknown."""
    shards: Annotated[tuple[ShardEntry, ...], Field(min_length=1)]
    """The files, in order."""

    @model_validator(mode="after")
    def _check_shape(self) -> "ShardIndex":
        wanted = 1 if self.kind == "vectors" else 2
        if len(self.shape or ()) != wanted and (self.shape is not None or wanted == 1):
            raise ValueError(f"shape has {wanted} numbers for {self.kind}")
        return self


class Row(NamedTuple):
    """One sample in its stored form.

    Attributes:
        sample: A picture's bytes, or float32 features (features,).
        label: Its class, -1 where unknown.
        client: Its client, -1 where unknown.
        name: What it was called where it came from.
    """

    sample: bytes | NDArray[np.float32]
    label: int
    client: int
    name: str


def write_shard_files(
    folder: Path, rows: Iterator[Row], shard_bytes: int
) -> tuple[ShardEntry, ...]:
    """Write rows into shards of about `shard_bytes`; one shard at a time is in memory.

    Args:
        folder: Where to; made if it is not there.
        rows: The samples, all pictures or all vectors of one width.
        shard_bytes: A shard ends with the sample that reaches this size.

    Returns:
        The entries for the index.
    """
    if isinstance(folder, Path):
        folder.mkdir(parents=True, exist_ok=True)
    entries: list[ShardEntry] = []
    waiting: list[Row] = []
    size = 0

    for row in rows:
        waiting.append(row)
        size += len(row.sample) if isinstance(row.sample, bytes) else row.sample.nbytes
        if size >= shard_bytes:
            entries.append(write_shard(folder, len(entries), waiting))
            waiting, size = [], 0
    if waiting:
        entries.append(write_shard(folder, len(entries), waiting))
    return tuple(entries)


def write_shard(folder: Path, number: int, rows: Sequence[Row]) -> ShardEntry:
    """Write one complete shard or nothing, and return its entry for the index."""
    with writing(folder / shard_name(number)) as temporary:
        _write_batch(temporary, rows)
        return entry_of(temporary, number, len(rows))


def entry_of(path: Path, number: int, rows: int) -> ShardEntry:
    """Return the index's entry for a shard that is at a temporary path."""
    return ShardEntry(file=shard_name(number), rows=rows, digest=regular_files.sha256(path))


def shard_name(number: int) -> str:
    """Return the file of a shard, counted from 0."""
    return f"shard-{number:05d}.arrow"


def write_index(folder: Path, index: ShardIndex) -> None:
    """Write `index.json`, as the last file of the folder."""
    text = json.dumps(index.model_dump(mode="json"), indent=2, ensure_ascii=False)
    with writing(folder / INDEX) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8", newline="\n")


def _schema(index: ShardIndex) -> pa.Schema:
    """Return the columns of every shard."""
    width = None if index.shape is None else index.shape[0]
    vectors = index.kind == "vectors"
    sample = pa.list_(pa.float32(), width) if vectors else pa.large_binary()
    types = (sample, pa.int64(), pa.int64(), pa.string())
    return pa.schema(list(zip(_COLUMNS, types, strict=True)))


def _is_shard_of(batch: Any, entry: ShardEntry, index: ShardIndex) -> bool:
    """Return whether a batch has the rows and columns that an index says, and no gaps."""
    if batch.num_rows != entry.rows or not batch.schema.equals(_schema(index)):
        return False
    columns = [*batch.columns, *([batch["sample"].values] if index.kind == "vectors" else [])]
    return not any(column.null_count for column in columns)


def _write_batch(path: Path, rows: Sequence[Row]) -> None:
    labels = pa.array([row.label for row in rows], pa.int64())
    clients = pa.array([row.client for row in rows], pa.int64())
    names = pa.array([row.name for row in rows], pa.string())
    if isinstance(rows[0].sample, bytes):
        samples = pa.array([row.sample for row in rows], pa.large_binary())
    else:
        values = np.stack([np.asarray(row.sample, np.float32) for row in rows])
        samples = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])
    batch = pa.record_batch([samples, labels, clients, names], names=_COLUMNS)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)


class _Mapped(NamedTuple):
    """A shard that this process has mapped.

    Attributes:
        batch: Its rows.
        file: The mapped file.
        status: That of the file when it was mapped.
    """

    batch: Any
    file: Path
    status: os.stat_result

    def check(self) -> None:
        """Refuse a file that was modified after it was mapped, since its rows may have changed.

        One that was replaced or removed stays as it was, for whoever has mapped it.

        Raises:
            DataError: If it was.
        """
        with suppress(FileNotFoundError):
            now, then = self.file.stat(), self.status
            if os.path.samestat(now, then) and (now.st_size, now.st_mtime_ns) != (
                then.st_size,
                then.st_mtime_ns,
            ):
                raise DataError(
                    f"{self.file}: it was changed while it was read; put it back as it was, or "
                    "import the data again, and start again."
                )


@dataclass
class ShardFiles:
    """An opened folder of shards, whose files are memory-mapped by the process that reads them.

    Shards at a URL are fetched one by one when a row of theirs is asked for, and kept on disk.
    """

    folder: Path
    index: ShardIndex
    _open: dict[int, "_Mapped"] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def open(cls, folder: Path) -> "ShardFiles":
        """Read the index of a folder.

        Raises:
            DataError: If it is missing, damaged, or of another version.
        """
        path = folder / INDEX
        if not path.is_file():
            raise DataError(f"{folder}: there is no {INDEX}; make shards with coterie import_data.")
        try:
            local = isinstance(path, Path)
            values = read_json(path) if local else json.loads(path.read_text(encoding="utf-8"))
            index = load_component(ShardIndex, values if isinstance(values, dict) else {})
        except (ConfigError, OSError, ValueError, RecursionError) as error:
            raise DataError(f"{path}: it is damaged ({error}); import the data again.") from error
        return cls(folder, index)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without this process's memory maps."""
        return {"folder": self.folder, "index": self.index, "_open": {}}

    def __len__(self) -> int:
        return self._ends[-1]

    def pictures(self, rows: Indices) -> list[bytes]:
        """Return the pictures of some rows, as encoded.

        Raises:
            DataError: If a shard is missing or damaged.
        """
        return [shard["sample"][place].as_py() for shard, place in self._found(rows)]

    def vectors(self, rows: Indices) -> NDArray[np.float32]:
        """Return the vectors of some rows (m, features).

        Raises:
            DataError: If a shard is missing or damaged.
        """
        assert self.index.shape is not None  # vectors have one width
        found = np.empty((len(rows), *self.index.shape), np.float32)
        for at, (shard, place) in enumerate(self._found(rows)):
            found[at] = self._values(shard)[place]
        return found

    def names(self, rows: Indices) -> list[str]:
        """Return the names of some rows."""
        return [shard["name"][place].as_py() for shard, place in self._found(rows)]

    def numbers(self, column: Literal["label", "client"]) -> NDArray[np.int64]:
        """Return a column of numbers of all rows (n,).

        Raises:
            DataError: If a number is out of the range of its names.
        """
        parts = [self._shard(n)[column].to_numpy() for n in range(len(self.index.shards))]
        found: NDArray[np.int64] = np.concatenate(parts)
        known = {"label": self.index.classes, "client": self.index.clients}[column]
        if len(found) and not -1 <= found.min() <= found.max() < len(known):
            raise DataError(
                f"{self.folder}: a {column} is outside -1..{len(known) - 1}; import the data again."
            )
        return found

    @cached_property
    def _version(self) -> str:
        """A digest of the index, which differs from that of earlier shards at the same URL."""
        return sha256((self.folder / INDEX).read_bytes()).hexdigest()

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(entry.rows for entry in self.index.shards))

    def _places(self, rows: Indices) -> Iterator[tuple[int, int]]:
        """Return each row's shard and its place in the shard."""
        for row in rows.tolist():
            shard = bisect_right(self._ends, row)
            yield shard, row - (self._ends[shard - 1] if shard else 0)

    def _found(self, rows: Indices) -> Iterator[tuple[Any, int]]:
        """Return each row's shard, checked for later changes, and its place in the shard."""
        places = [*self._places(rows)]
        for number in {number for number, _ in places} & self._open.keys():
            self._open[number].check()
        return ((self._shard(number), place) for number, place in places)

    def _values(self, shard: Any) -> NDArray[np.float32]:
        """Return all vectors of a shard, as a view of the file."""
        flat = shard["sample"].flatten().to_numpy()
        values: NDArray[np.float32] = flat.reshape(-1, *(self.index.shape or ()))
        return values

    def _shard(self, number: int) -> Any:
        """Return one shard's record batch, mapped when first asked for."""
        if number not in self._open:
            entry = self.index.shards[number]
            path = self.folder / entry.file
            try:
                local = path if isinstance(path, Path) else cached(path, self._version)
                status = local.stat()
                batch = read_batch(local)
                batch.validate(full=True)
            except (pa.ArrowException, OSError, ValueError) as error:
                raise DataError(
                    f"{path}: it cannot be read ({reason(error)}); import the data again."
                ) from error
            if not _is_shard_of(batch, entry, self.index):
                raise DataError(
                    f"{path}: it is not the shard that the index describes; import the data again."
                )
            self._open[number] = _Mapped(batch, local, status)
        return self._open[number].batch


@dataclass(frozen=True)
class ShardNames(Lazy[str]):
    """The names of the samples in shards, each read when it is indexed."""

    files: ShardFiles

    def __len__(self) -> int:
        return len(self.files)

    def _item(self, index: int) -> str:
        return self.files.names(np.array([index], dtype=np.int64))[0]
