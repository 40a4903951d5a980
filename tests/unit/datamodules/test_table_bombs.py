"""Small files with one long value in every row, or more labels than samples, fill no memory."""

import io
import json
import re
import tracemalloc
import zipfile
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coterie.config.arrow_growth import decoded_size
from coterie.contract.data import DataArrays
from coterie.datamodules.fitting import Fitting
from coterie.datamodules.manifest import Manifest
from coterie.datamodules.npz import NPZ
from coterie.datamodules.parquet_images import open_parquet_images
from coterie.datamodules.partition_files import read_partition
from coterie.datamodules.stored import StoredTable
from coterie.datamodules.streams import open_samples
from coterie.datamodules.table_columns import TableColumns
from coterie.errors import ConfigError, DataError
from coterie.run.cluster_page import _read_assignments
from coterie.tracking.report_words import client_clusters

LONG, PART, PARTS = "a" * (1 << 20), 32, 9
"""One value of 1 MiB, and rows: 288 MiB in all."""
MOST = 200 << 20
POOLS = []
"""All that were used: arrays may outlive their test."""
VECTORS = Fitting((2,), images=False, mode=None)
GROWS = r"\d+ compressed bytes grow to \d{9} or more in its column "


@pytest.fixture(autouse=True)
def measured():
    """The test's peak of memory, of Arrow and of Python, is small."""
    usual = pa.default_memory_pool()
    POOLS.append(pool := pa.proxy_memory_pool(usual))
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        yield
        assert pool.max_memory() + tracemalloc.get_traced_memory()[1] < MOST
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(usual)


@contextmanager
def refused(match):
    with pytest.raises((DataError, ConfigError, ValueError), match=match) as caught:
        yield
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def bomb(file, parts=PARTS, encoding=None, **columns):
    """A parquet file with the same part several times."""
    given = {name: pa.array([value] * PART, *kind) for name, (value, *kind) in columns.items()}
    part = pa.table({**given, "row": list(range(PART))})
    how = {} if encoding is None else {"use_dictionary": False, "column_encoding": encoding}
    with pq.ParquetWriter(file, part.schema, compression="zstd", store_schema=False, **how) as out:
        for _ in range(parts):
            out.write_table(part)
    assert file.stat().st_size < 1 << 17
    return file


def manifest(path, **keys):
    config = Manifest.Config(path=str(path), **{"picture_column": "path", **keys})
    return Manifest(config).open_half("train")


COLUMNS = {
    "a text": ("path", {"path": (LONG,)}, {}),
    "a label": ("label", {"path": ("x.png",), "label": (LONG,)}, {"label_column": "label"}),
    "a client": ("client", {"path": ("x.png",), "client": (LONG,)}, {"client_column": "client"}),
    "bytes as a label": ("a", {"path": ("x.png",), "a": (LONG.encode(),)}, {"label_column": "a"}),
    "bytes of one width": (
        "a",
        {"path": ("x.png",), "a": (LONG.encode(), pa.binary(1 << 20))},
        {"client_column": "a"},
    ),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_a_column_with_a_dictionary(tmp_path, case):
    column, columns, keys = COLUMNS[case]
    path = bomb(tmp_path / "x.parquet", **columns)
    with refused(rf"x\.parquet: it cannot be read \({GROWS}{column}\)"):
        manifest(path, **keys)


def test_a_column_in_which_each_value_begins_like_the_one_before(tmp_path):
    path = bomb(tmp_path / "x.parquet", path=(LONG,), encoding={"path": "DELTA_BYTE_ARRAY"})
    with refused(GROWS + "path"):
        manifest(path)


def test_a_column_that_does_not_say_that_it_has_a_dictionary(tmp_path):
    path = tmp_path / "x.parquet"
    how = {"compression": "zstd", "store_schema": False, "write_statistics": False}
    pq.write_table(pa.table({"path": dictionary(LONG)}), path, **how)
    content = path.read_bytes()
    offsets = re.compile(rb"\x26[\x80-\xff]\x01\x26\x08\x29")  # data at 64 to 127, dictionary at 4
    content, changed = offsets.subn(b"\x26\x88\x00\x16\x00\x39", content)  # data at 4
    path.write_bytes(content.replace(b"\x19\x35\x00\x06\x10", b"\x19\x35\x00\x06\x06"))
    known = pq.ParquetFile(path).metadata.row_group(0).column(0)
    assert changed
    assert not known.has_dictionary_page
    assert known.encodings == ("PLAIN", "RLE", "RLE")
    assert pq.read_table(path, read_dictionary=["path"])["path"][0].as_py() == LONG
    with refused(GROWS + "path"):
        manifest(path)


@pytest.mark.parametrize(
    ("picture", "column"),
    [
        (LONG.encode(), "image"),
        ({"bytes": LONG.encode(), "path": "x.png"}, r"image\.bytes"),
        ([0.0] * (1 << 18), r"image\.list\.element"),
    ],
    ids=["bytes", "structs", "lists"],
)
def test_pictures_and_vectors(tmp_path, picture, column):
    kind = [pa.list_(pa.float32())] if isinstance(picture, list) else []
    path = bomb(tmp_path / "x.parquet", image=(picture, *kind))
    source = manifest(path, picture_column="image")
    with refused(GROWS + column):
        for row in range(source.count):
            source.read(np.array([row])) if kind else source.pictures[row]


def test_a_data_set_of_the_hub(tmp_path):
    path = bomb(tmp_path / "x.parquet", image=({"bytes": LONG.encode()},), label=(1,))
    with refused(GROWS + r"image\.bytes"):
        open_parquet_images([path], "RGB", 10)


@pytest.mark.parametrize("column", ["id", "name", "client", "ward"])
def test_samples_to_predict(tmp_path, column):
    columns = {"embedding": ([0.0, 1.0], pa.list_(pa.float32())), column: (LONG,)}
    path = bomb(tmp_path / "x.parquet", **columns)
    own = TableColumns(client="ward")
    with refused(rf"x\.parquet: it cannot be read \({GROWS}{column}\)"):
        for _ in open_samples(path, VECTORS, 16, columns=own).batches:
            pass


def test_columns_that_nobody_needs_are_not_read(tmp_path):
    path = bomb(tmp_path / "x.parquet", f=(1.0,), note=(LONG,))
    total = sum(len(batch.samples) for batch in open_samples(path, VECTORS, 16).batches)
    assert total == PART * PARTS
    assert manifest(bomb(tmp_path / "y.parquet", path=("x.png",), note=(LONG,))).count == total


def test_a_partition_with_a_column_too_many(tmp_path):
    path = bomb(tmp_path / "x.parquet", sample=(0,), client=(0, pa.int32()), note=(LONG,))
    with refused("its columns are sample, client, note, row; it needs"):
        read_partition(path, DataArrays(name="x", samples=np.zeros((PART, 2), np.float32)))


@pytest.mark.parametrize("column", ["client", "client_name"])
def test_a_report(tmp_path, column):
    path = tmp_path / "x.parquet"
    for cluster in (np.zeros(PART * PARTS, int), np.arange(PART * PARTS)):
        pq.write_table(pa.table({column: dictionary(LONG), "cluster": cluster}), path)
        head, rows, _ = client_clusters(path)
        assert rows[0][0] == LONG
        assert len(head) == 1 + min(30, len(set(cluster)))


def test_a_report_of_clients_whose_names_begin_alike(tmp_path):
    path = tmp_path / "x.parquet"
    encoding = {"client": "DELTA_BYTE_ARRAY"}
    path = bomb(path, encoding=encoding, client=(LONG,), cluster=(0,))
    with refused(GROWS + "client"):
        client_clusters(path)


def test_a_page_of_clusters(tmp_path):
    kinds = {"sample": (0,), "cluster": (0, pa.int32()), "confidence": (1.0, pa.float32())}
    path = bomb(tmp_path / "x.parquet", **kinds, name=(LONG,))
    with refused(rf"x\.parquet: it is damaged \({GROWS}name\)"):
        _read_assignments(path, 10**6, 3, outliers=False)


def dictionary(value):
    rows = pa.array(np.zeros(PART * PARTS, np.int32))
    return pa.DictionaryArray.from_arrays(rows, pa.array([value]))


def runs(value):
    return pa.RunEndEncodedArray.from_arrays(pa.array([PART * PARTS], pa.int32()), [value])


def views(_):
    """Texts that all lie at the same place."""
    view = np.array([len(LONG), int.from_bytes(b"aaaa", "little"), 0, 0], np.int32)
    buffers = [None, pa.py_buffer(np.tile(view, PART * PARTS)), pa.py_buffer(LONG.encode())]
    return pa.Array.from_buffers(pa.string_view(), PART * PARTS, buffers)


@pytest.mark.parametrize("encoded", [dictionary, runs, views])
@pytest.mark.parametrize("key", ["label_column", "client_column", "picture_column"])
def test_a_saved_data_set(tmp_path, encoded, key):
    pictures = pa.array([[0.0, 1.0]] * (PART * PARTS))
    table = pa.table({"path": pictures, "text": encoded(LONG)})
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "d.arrow"}]}))
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    path = tmp_path / "d.arrow"
    with pa.ipc.new_stream(path, table.schema, options=options) as writer:
        writer.write_table(table)
    assert path.stat().st_size < 1 << 17
    no_paths = key == "picture_column" and encoded is not dictionary
    with refused("is of type" if no_paths else GROWS + "text"):
        manifest(tmp_path, **{key: "text"})


def test_long_texts_that_stand_in_few_rows_and_short_ones_in_many(tmp_path):
    site = "A hospital of a town with a long name, ward for radiology"
    rows, path = 10**6, tmp_path / "x.parquet"
    zeros = pa.array(np.zeros(rows, np.int32))
    client = pa.DictionaryArray.from_arrays(zeros, pa.array([site]))
    pq.write_table(
        pa.table({"client": client, "cluster": zeros}), path, compression="zstd", store_schema=False
    )
    assert client_clusters(path)[1] == [[site, f"{rows:,}"]]
    few = bomb(tmp_path / "few.parquet", 2, path=("x.png",), label=(LONG,))
    assert manifest(few, label_column="label").classes == (LONG,)


def test_of_large_columns_the_rows_are_counted(tmp_path):
    """A dictionary of many long values may be large in every row, but is not."""
    texts = [f"{row:01000d}" for row in range(500)] + ["x"] * 300_000
    pq.write_table(pa.table({"path": texts}), tmp_path / "x.parquet", compression="zstd")
    assert StoredTable((tmp_path / "x.parquet",)).column("path").to_pylist() == texts


def npz(path, header=None, pack=zipfile.ZIP_DEFLATED, values=0, **arrays):
    """A file of arrays, of which the labels have any header, and values of one byte."""
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(content, {"fortran_order": False, **(header or {})})
    with zipfile.ZipFile(path, "w", pack) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as file:
                np.save(file, array)
        with archive.open("y.npy" if "x" in arrays else "x.npy", "w") as file:
            file.write(content.getvalue())
            for _ in range(values >> 20):
                file.write(bytes(1 << 20))
    return path


VECTORS_10 = np.zeros((10, 4), np.float32)


@pytest.mark.parametrize("pack", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("kind", ["|V0", "|S0", "<U0"])
@pytest.mark.parametrize("key", ["labels", "clients"])
def test_labels_without_bytes(tmp_path, pack, kind, key):
    path = npz(tmp_path / "x.npz", {"descr": kind, "shape": (10,)}, pack, x=VECTORS_10)
    with refused("its values are .[VSU]0, which have no bytes"):
        NPZ(NPZ.Config(path=str(path), **{key: "y"})).arrays()


@pytest.mark.parametrize("shape", [(1 << 24,), (1 << 24, 1)])
@pytest.mark.parametrize("kind", ["|i1", "|b1", "|S1"])
@pytest.mark.parametrize("key", ["labels", "clients"])
def test_more_labels_than_samples(tmp_path, kind, key, shape):
    header = {"descr": kind, "shape": shape}
    path = npz(tmp_path / "x.npz", header, values=1 << 24, x=VECTORS_10)
    with refused("array y, has 16777216 entries for 10 samples; give one for each"):
        NPZ(NPZ.Config(path=str(path), **{key: "y"})).arrays()


def test_more_samples_than_the_bytes_can_tell_apart(tmp_path):
    header = {"descr": "|i1", "shape": (1 << 25, 1)}
    path = npz(tmp_path / "x.npz", header, values=1 << 25)
    with refused("bytes claim 33554432 rows"):
        NPZ(NPZ.Config(path=str(path))).arrays()


@pytest.mark.parametrize("name", ["x.npy", "x.npz"])
@pytest.mark.parametrize("kind", ["|V0", "|S0", "<U0"])
def test_samples_without_bytes(tmp_path, name, kind):
    path = npz(tmp_path / "x.npz", {"descr": kind, "shape": (1 << 33,)})
    if name == "x.npy":
        with zipfile.ZipFile(path) as archive:
            path = tmp_path / name
            path.write_bytes(archive.read("x.npy"))
    with refused("have no bytes"):
        NPZ(NPZ.Config(path=str(path))).arrays()
    with refused("have no bytes"):
        list(open_samples(path, VECTORS, 16).batches)


def test_lists_are_no_labels(tmp_path):
    nothing = pa.FixedSizeListArray.from_arrays(pa.nulls(PART << 20), 1 << 20)
    table = pa.table({"path": ["x.png"] * PART, "text": nothing})
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "d.arrow"}]}))
    with pa.ipc.new_stream(tmp_path / "d.arrow", table.schema) as writer:
        writer.write_table(table)
    for key in ("label_column", "client_column"):
        with refused(r"its column text is of type fixed_size_list<|grow to \d{9} or more"):
            manifest(tmp_path, **{key: "text"})


NESTED = pa.array([[LONG[:1000]]] * 10, pa.list_(pa.string()))


@pytest.mark.parametrize(
    ("array", "least"),
    [
        (pa.array(["abc"] * 10).dictionary_encode(), 30),
        (pa.array(["abc"] * 10 + [None]).dictionary_encode()[2:], 24),
        (pa.array([b"abc"] * 10).dictionary_encode(), 30),
        (pa.array([7] * 10).dictionary_encode(), 80),
        (pa.StructArray.from_arrays([pa.array(["abc"] * 10).dictionary_encode()], ["a"]), 30),
        (pa.ListArray.from_arrays([0, 4, 10], pa.array(["abc"] * 10).dictionary_encode()), 30),
        (pa.ListViewArray.from_arrays([0, 0, 0], [2, 2, 2], pa.array([1.0, 2.0])), 48),
        (pa.DictionaryArray.from_arrays([0] * 10, NESTED[:1]), 10_000),
        (pa.RunEndEncodedArray.from_arrays(pa.array([10], pa.int32()), NESTED[:1]), 10_000),
        (pa.array(["x", "y" * 100, None] * 10, pa.string_view()), 1010),
        (pa.nulls(10), 80),
        (pa.chunked_array([["abc"], ["d"]]), 4),
    ],
    ids=lambda value: str(value.type) if hasattr(value, "type") else "",
)
def test_sizes_of_decoded_arrays(array, least):
    assert least <= decoded_size(array) < 10 * least
