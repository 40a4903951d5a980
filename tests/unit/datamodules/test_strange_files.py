"""Shards, tables, arrays and tar files that no program writes by itself: one sentence, no more."""

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from coterie.config import growth
from coterie.datamodules.decoding import Levelled, read_content
from coterie.datamodules.idx import read_idx
from coterie.datamodules.manifest import Manifest
from coterie.datamodules.npz import NPZ
from coterie.datamodules.parquet_images import open_parquet_images
from coterie.datamodules.picture_search import PictureSearch
from coterie.datamodules.sample_tables import open_parquet_table
from coterie.datamodules.shard_files import ShardFiles
from coterie.datamodules.shards import Shards
from coterie.datamodules.stored import FilePart
from coterie.datamodules.streams import open_samples
from coterie.datamodules.webdataset import WebDataset
from coterie.errors import DataError

FLOATS = pa.list_(pa.float32(), 3)
VECTORS = {"kind": "vectors", "shape": [3], "modes": {}}


def png():
    file = io.BytesIO()
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(file, "PNG")
    return file.getvalue()


PICTURES = pa.array([png()] * 4, pa.large_binary())
ROWS = pa.array([[1.0, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12]], FLOATS)


def shards(folder, columns=None, compression=None, **index):
    """A folder of one shard of four samples, and its index."""
    columns = {
        "sample": PICTURES,
        "label": pa.array([0, 1, 0, 1]),
        "client": pa.array([-1] * 4),
        "name": pa.array(list("abcd")),
        **(columns or {}),
    }
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    options = pa.ipc.IpcWriteOptions(compression=compression)
    folder.mkdir(parents=True)
    with (
        pa.OSFile(str(folder / "shard-00000.arrow"), "wb") as file,
        pa.ipc.new_file(file, batch.schema, options=options) as writer,
    ):
        writer.write_batch(batch)
    entry = {"file": "shard-00000.arrow", "rows": 4, "digest": "0"}
    whole = {"kind": "pictures", "shape": [8, 8], "classes": ["a", "b"], "shards": [entry]}
    (folder / "index.json").write_text(json.dumps({**whole, **index}))
    return folder


def everything(folder):
    """All that is read of shards."""
    files = ShardFiles.open(folder)
    rows = np.arange(len(files))
    vectors = files.index.kind == "vectors"
    samples = files.vectors(rows) if vectors else files.pictures(rows)
    return samples, files.numbers("label"), files.numbers("client"), files.names(rows)


def refused(read, match):
    with pytest.raises(DataError, match=match) as caught:
        read()
    assert "\n" not in str(caught.value)


def test_shards_are_read(tmp_path):
    assert everything(shards(tmp_path / "p"))[0] == PICTURES.to_pylist()
    vectors = everything(shards(tmp_path / "v", {"sample": ROWS}, **VECTORS))[0]
    np.testing.assert_array_equal(vectors, np.arange(1, 13).reshape(4, 3))


GAPS = {
    "label": pa.array([0, None, 0, 1], pa.int64()),
    "client": pa.array([0, None, 0, 1], pa.int64()),
    "name": pa.array(["a", None, "c", "d"]),
    "sample": pa.array([png(), None, png(), png()], pa.large_binary()),
}


@pytest.mark.parametrize("column", GAPS)
def test_a_gap_in_a_shard_is_refused(tmp_path, column):
    folder = shards(tmp_path / "x", {column: GAPS[column]}, clients=["x", "y"])
    refused(
        lambda: everything(folder), "it is not the shard that the index describes; import the data"
    )


@pytest.mark.parametrize("row", [None, [4.0, None, 6.0]])
def test_a_gap_among_vectors_moves_no_others(tmp_path, row):
    rows = pa.array([[1.0, 2, 3], row, [7, 8, 9], [10, 11, 12]], FLOATS)
    folder = shards(tmp_path / "x", {"sample": rows}, **VECTORS)
    refused(
        lambda: everything(folder), "it is not the shard that the index describes; import the data"
    )


@pytest.mark.parametrize(
    "index",
    [
        {**VECTORS, "shape": None},
        *({**VECTORS, "shape": shape} for shape in ([], [3, 1], [3, 2], [10**12], [10**30])),
        *({"shape": shape} for shape in ([], [5], [1, 2, 3])),
        *(
            {"shards": [{"file": "shard-00000.arrow", "rows": rows, "digest": "0"}]}
            for rows in (2**63, 10**30)
        ),
    ],
)
def test_an_index_of_what_there_cannot_be_is_refused(tmp_path, index):
    folder = shards(tmp_path / "x", {"sample": ROWS} if "kind" in index else None, **index)
    refused(lambda: everything(folder), "index.json: it is damaged")
    refused(lambda: Shards(Shards.Config(path=str(folder))).arrays(), "it is damaged")


@pytest.fixture
def little_room(monkeypatch):
    """Compressed data may grow to 64 KiB, or a hundred times."""
    monkeypatch.setattr("coterie.config.growth._FREE", 1 << 16)


ZEROS = pa.array([bytes(1 << 20)] * 4, pa.large_binary())
GROWS = r"compressed bytes grow to 4\d{6} or more"


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_compressed_shards_grow_within_bounds(tmp_path, little_room, compression):
    assert everything(shards(tmp_path / "a", compression=compression))[0] == PICTURES.to_pylist()
    folder = shards(tmp_path / "b", {"sample": ZEROS}, compression)
    refused(lambda: everything(folder), GROWS)
    assert len(everything(shards(tmp_path / "c", {"sample": ZEROS}))[0]) == 4  # as it is


@pytest.mark.parametrize("damage", [b"", b"ARROW1\0\0", b"ARROW1\0\0" + bytes(100), b"PAR1"])
def test_a_shard_that_is_none_is_refused(tmp_path, damage):
    folder = shards(tmp_path / "x")
    (folder / "shard-00000.arrow").write_bytes(damage)
    refused(lambda: everything(folder), r"shard-00000\.arrow: it cannot be read")


def saved_dataset(folder, table, compression=None):
    """A folder as Hugging Face datasets saves it."""
    folder.mkdir()
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "d.arrow"}]}))
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with (
        pa.OSFile(str(folder / "d.arrow"), "wb") as file,
        pa.ipc.new_stream(file, table.schema, options=options) as writer,
    ):
        writer.write_table(table)
    return folder


def manifest(path, **keys):
    config = Manifest.Config(path=str(path), **{"picture_column": "image", **keys})
    return Manifest(config).arrays()


def test_saved_datasets_grow_within_bounds(tmp_path, little_room):
    fine = pa.table({"image": PICTURES})
    assert len(manifest(saved_dataset(tmp_path / "a", fine, "zstd")).samples) == 4
    bomb = saved_dataset(tmp_path / "b", pa.table({"image": ZEROS}), "zstd")
    refused(lambda: manifest(bomb), GROWS)


def parquet(path, **columns):
    pq.write_table(pa.table(columns), path, compression="zstd", use_dictionary=False)
    return path


def test_parquet_grows_within_bounds(tmp_path, little_room):
    bomb = parquet(tmp_path / "x.parquet", image=ZEROS, label=pa.array([0] * 4))
    refused(lambda: manifest(bomb), GROWS)
    refused(lambda: open_parquet_table(bomb, 512), GROWS)
    refused(lambda: open_parquet_images([bomb], "RGB", 10), GROWS)


def test_a_table_has_no_more_rows_than_its_bytes_can_tell(tmp_path, monkeypatch):
    monkeypatch.setattr(growth, "_ROWS", 1000)
    many = {"image": pa.nulls(10**6)}
    refused(lambda: manifest(parquet(tmp_path / "x.parquet", **many)), "bytes claim 1000000 rows")
    stream = saved_dataset(tmp_path / "x", pa.table(many))
    refused(lambda: manifest(stream), "bytes claim 1000000 rows")


@pytest.mark.parametrize("cell", ["abc", 3, [1, 2], None])
def test_a_struct_whose_bytes_are_none_is_refused(tmp_path, cell):
    table = parquet(tmp_path / "x.parquet", image=pa.array([{"bytes": cell}] * 3))
    refused(lambda: manifest(table), r"column image, is of type struct<bytes: .*; give paths")


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        (pa.array([np.inf, 0, 1]), "holds inf, a fraction"),
        (pa.array([2**31 - 1, 0, 1], pa.date32()), "its column label cannot be read"),
    ],
)
def test_labels_beyond_all_numbers_are_refused(tmp_path, labels, sentence):
    table = parquet(tmp_path / "x.parquet", image=PICTURES[:3], label=labels)
    refused(lambda: manifest(table, label_column="label"), sentence)


def arrays(path, **found):
    np.savez(path, **{"samples": np.zeros((4, 8, 8), np.uint8), **found})
    return NPZ(NPZ.Config(path=str(path))).arrays()


def test_arrays_of_strange_labels_and_of_no_values(tmp_path):
    refused(lambda: arrays(tmp_path / "a.npz", labels=np.array([1, 2, 3, np.inf])), "holds inf")
    named = arrays(tmp_path / "b.npz", labels=np.array([b"\xff", b"a", b"a", b"b"]))
    assert named.classes == (r"\xff", "a", "b")
    empty = np.zeros((4, 1, 0), np.uint8)
    refused(lambda: arrays(tmp_path / "c.npz", samples=empty), r"\(4, 1, 0\), and so no values")


def as_shards(path):
    (path / "index.json").symlink_to("/proc/self/status")
    return lambda: ShardFiles.open(path)


def as_tar(path):
    (path / "x.tar").symlink_to("/proc/self/status")
    return lambda: WebDataset(WebDataset.Config(path=str(path))).arrays()


def as_csv(path):
    (path / "x.csv").symlink_to("/proc/self/status")
    return lambda: manifest(path / "x.csv")


def as_arrays(path):
    (path / "x.npz").symlink_to("/proc/self/status")
    return lambda: NPZ(NPZ.Config(path=str(path / "x.npz"))).arrays()


def as_input(path):
    (path / "x.csv").symlink_to("/proc/self/status")
    return lambda: open_samples(path / "x.csv", None, 8)


def as_idx(path):
    (path / "x-ubyte").symlink_to("/proc/self/status")
    return lambda: read_idx(path / "x-ubyte")


@pytest.mark.parametrize("link", [as_shards, as_tar, as_csv, as_arrays, as_input, as_idx])
def test_a_link_to_a_file_of_the_system_is_not_read(tmp_path, link):
    refused(link(tmp_path), "not a regular file")


def test_a_link_without_extension_is_not_looked_into(tmp_path, monkeypatch):
    (tmp_path / "x").symlink_to("/proc/self/status")
    monkeypatch.setattr("coterie.datamodules.dicom.is_dicom", lambda content: True)
    refused(lambda: PictureSearch().find(tmp_path), "there are no pictures")


def test_a_file_with_holes_is_not_read_into_memory(tmp_path):
    path = tmp_path / "x.png"
    with path.open("wb") as file:
        file.truncate(40 << 30)
    part = FilePart(path, 0, 40 << 30)
    for picture in (path, part, Levelled(path, None), Levelled(part, None)):
        refused(lambda picture=picture: read_content(picture, "x"), "x has more than 2 GiB; make")


def _tar_header(name: str, content: bytes, kind: bytes) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = len(content), kind
    return info.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % 512)


_KEYS = b"".join(b"10 %03d=ab\n" % key for key in range(200))


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        (_tar_header("x", b"a" * (1 << 17), b"x"), "headers of more than 64 KiB"),
        (_tar_header("x", b"1" * (1 << 15), b"x"), "a number of 200 digits or more"),
        (_tar_header("g", _KEYS, b"g"), "over 100 keys"),
        (_tar_header("g", 5 * _KEYS, b"g") * 10, "headers of more than 64 KiB"),
        (_tar_header("././@LongLink", b"ab\0", b"L") * 3000, "headers of more than 64 KiB"),
        (_tar_header("x", b"", b"x") * 3000, "headers of more than 64 KiB"),
    ],
)
def test_headers_of_a_tar_file_that_take_time_or_memory_are_refused(
    tmp_path: Path, headers: bytes, why: str
) -> None:
    path = tmp_path / "strange.tar"
    path.write_bytes(headers + _tar_header("a.png", b"", b"0") + bytes(1024))
    data = WebDataset(WebDataset.Config(path=str(path)))
    with pytest.raises(DataError, match=rf"it cannot be read as a tar file \(.*{why}"):
        data.open_half("train")


def test_many_members_with_headers_and_labels_are_read(tmp_path: Path) -> None:
    path = tmp_path / "many.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        for number in range(300):
            for name, content in ((f"é{number}.png", bytes(4000)), (f"é{number}.cls", b"1")):
                info = tarfile.TarInfo(name)
                info.size, info.pax_headers = len(content), {"comment": "a" * 1000}
                archive.addfile(info, io.BytesIO(content))
    source = WebDataset(WebDataset.Config(path=str(path))).open_half("train")
    assert source.count == 300
    assert source.labels is not None
