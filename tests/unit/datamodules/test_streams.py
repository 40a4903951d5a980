"""Samples from arrays and tables, batch by batch, fitted to what a model takes; refusals."""

import io
import os
import re
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from PIL import Image

from coterie.datamodules.fitting import Fitting
from coterie.datamodules.shard_files import Row, ShardIndex, write_index, write_shard_files
from coterie.datamodules.streams import open_samples
from coterie.datamodules.table_columns import TableColumns, columns_as_trained
from coterie.errors import ConfigError, DataError


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


VECTORS = Fitting((3,), images=False, mode=None)


def read(path, size=2):
    stream = open_samples(Path(path), VECTORS, size)
    return stream, list(stream.batches)


def test_tables_of_numbers_are_vectors(tmp_path):
    rows = np.arange(15, dtype=np.float32).reshape(5, 3)
    columns = {"id": list("vwxyz"), **{f"f{i}": rows[:, i] for i in range(3)}, "label": [0] * 5}
    pq.write_table(pa.table(columns), "x.parquet")
    lists = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), 3)
    pq.write_table(pa.table({"features": lists}), "lists.parquet")
    np.savetxt("x.csv", rows, delimiter=",", header="a,b,c", comments="")
    for name, total in (("x.parquet", 5), ("lists.parquet", 5), ("x.csv", None)):
        stream, batches = read(name)
        assert stream.total == total
        assert [len(batch.samples) for batch in batches] == [2, 2, 1]
        assert np.array_equal(np.concatenate([batch.samples for batch in batches]), rows)
        assert batches[0].samples.dtype == np.float32
    assert read("x.parquet")[1][1].names == ("x", "y")


def test_features_that_the_run_named_are_taken_in_its_order():
    Path("x.csv").write_text("nr,b,a,day\n7,0.5,1,2024-03-01\n8,1.5,2,2024-03-02\n")
    own = TableColumns(picture="path", features=("a", "b"))
    stream = open_samples(Path("x.csv"), Fitting((2,), images=False, mode=None), 2, columns=own)
    assert [batch.samples.tolist() for batch in stream.batches] == [[[1, 0.5], [2, 1.5]]]
    for features, told in (
        (("c",), "it has no column c, which is a"),
        (("day",), "day is of type"),
    ):
        with pytest.raises(DataError, match=told):
            open_samples(Path("x.csv"), VECTORS, 2, columns=own._replace(features=features))


def test_features_are_in_the_ranges_of_the_run():
    Path("x.csv").write_text("a,b\n10,0.5\n20,1.5\n")
    own = columns_as_trained({"feature_ranges": {"a": [10, 30]}})
    stream = open_samples(Path("x.csv"), Fitting((2,), images=False, mode=None), 2, columns=own)
    assert next(stream.batches).samples.tolist() == [[0, 0.5], [0.5, 1.5]]


@pytest.mark.parametrize(
    ("ranges", "told"),
    [
        ("wide", "feature_ranges=wide: input should be a valid dictionary"),
        ({"a": [30, 10]}, "feature_ranges.a=[30,10]: a range goes from its lower to its upper end"),
        ({"a": {"low": 1}}, "feature_ranges.a={low:1}: must be a list in brackets"),
        ({"a": [1]}, "feature_ranges.a[1]: a value is needed"),
    ],
)
def test_ranges_of_a_stranger_that_are_none_are_told(ranges, told):
    with pytest.raises(ConfigError, match=re.escape(f"data.{told}")):
        columns_as_trained({"feature_ranges": ranges})


def test_a_feature_with_a_range_is_not_left_out():
    Path("x.csv").write_text("A,b\n10,0.5\n20,1.5\n")
    own = columns_as_trained({"feature_ranges": {"a": [10, 30]}})
    with pytest.raises(DataError, match=r"x\.csv: it has no feature a, which the run had; add it"):
        open_samples(Path("x.csv"), Fitting((2,), images=False, mode=None), 2, columns=own)


def test_the_columns_that_do_not_fit_are_named():
    Path("x.csv").write_text("nr,b,a\n7,0.5,1\n")
    stream = open_samples(Path("x.csv"), Fitting((2,), images=False, mode=None), 2)
    with pytest.raises(DataError, match=r"x\.csv, columns nr, b, a: it has shape \(1, 3\)"):
        list(stream.batches)


def test_a_table_has_the_columns_of_the_runs_own():
    stored = {"picture_column": "scan", "label_column": "finding", "client_column": "site"}
    columns = columns_as_trained({**stored, "target": "coterie.datamodules.manifest:Manifest"})
    assert columns == TableColumns(picture="scan", label="finding", client="site")
    assert columns_as_trained({"source": stored}) == columns
    chosen = columns_as_trained({**stored, "feature_columns": ["a", "b"]})
    assert chosen == columns._replace(features=("a", "b"))
    assert columns_as_trained({"picture_column": 3}) == columns_as_trained(None) == TableColumns()

    Path("pictures").mkdir()
    for number in range(3):
        Image.new("L", (4, 4), 60 * number).save(f"pictures/{number}.png")
    Path("list.csv").write_text(
        "scan,finding,site\n" + "".join(f"pictures/{n}.png,{n},00{n % 2}\n" for n in range(3))
    )
    as_bytes = [Path(f"pictures/{n}.png").read_bytes() for n in range(3)]
    table = pa.table({"scan": as_bytes, "site": ["000", "001", "000"]})
    pq.write_table(table, "list.parquet")
    for name, named in (("list.csv", True), ("list.parquet", False)):
        grey = Fitting((1, 4, 4), images=True, mode="L")
        stream = open_samples(Path(name), grey, 2, columns=columns)
        batches = list(stream.batches)
        assert (stream.named, stream.of_clients) == (named, True)
        assert [c for batch in batches for c in batch.clients] == ["000", "001", "000"]
        pixels = np.concatenate([batch.samples for batch in batches])
        assert pixels[:, 0, 0, 0].tolist() == [0, 60, 120]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("by_site", [True, False])
def test_a_table_of_paths_has_levels_by_site(kind, by_site):
    brightest = {"oslo": 4095, "rome": 65535}
    rows = {"scan": [], "site": []}
    for number in range(4):
        site = ("oslo", "rome")[number % 2]
        pixels = np.zeros((4, 4), np.uint16)
        pixels[:2] = brightest[site]
        Image.fromarray(pixels).save(f"{number}.png")
        rows["scan"].append(f"{number}.png")
        rows["site"].append(site)
    table = pa.table(rows if by_site else {"scan": rows["scan"]})
    (pq.write_table if kind == "parquet" else pa_csv.write_csv)(table, f"list.{kind}")
    fitting = Fitting((1, 4, 4), images=True, mode="L", measures=True)
    columns = TableColumns(picture="scan", client="site")
    stream = open_samples(Path(f"list.{kind}"), fitting, 3, columns=columns)
    found = np.concatenate([batch.samples for batch in stream.batches])
    assert found.shape == (4, 1, 4, 4)
    assert found[:, 0, 3, 0].tolist() == [0] * 4
    assert found[1::2, 0, 0, 0].tolist() == [255] * 2
    assert found[::2, 0, 0, 0].tolist() == [255 if by_site else 16] * 2  # 4095 of 65535 is 16


def test_a_run_on_lists_of_numbers_reads_lists():
    pq.write_table(pa.table({"found": [[1.0, 2.0, 3.0]]}), "x.parquet")
    stream = open_samples(Path("x.parquet"), VECTORS, 2, columns=TableColumns(picture="found"))
    assert next(stream.batches).samples.tolist() == [[1, 2, 3]]


def test_a_runs_labels_and_clients_are_no_features():
    Path("x.csv").write_text("a,finding,b,c,site\n1,7,2,3,9\n")
    own = TableColumns(label="finding", client="site")
    stream = open_samples(Path("x.csv"), VECTORS, 2, columns=own)
    (batch,) = stream.batches
    assert batch.samples.tolist() == [[1, 2, 3]]
    assert batch.clients == ("9",)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a,b\n1,2\n", "it has shape (1, 2) and type int64, but the model takes vectors of 3"),
        (
            "a,b,c\n1,2,inf\n",
            "cells are empty or not finite: c in 1 of 1 rows (line 2 first); fill or drop",
        ),
        (
            "a,b,c\n1,2,3\n1,2,nan\n",
            "c in 1 of 2 rows (line 3 first); fill or drop such rows, or set on_error=skip.",
        ),
        ("a,b,c\n1,2\n", "it cannot be read ("),
    ],
)
def test_bad_rows_are_refused(text, sentence):
    Path("x.csv").write_text(text)
    with pytest.raises(DataError) as refusal:
        read("x.csv")
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("named", [False, True])
def test_rows_with_empty_cells_are_left_out_if_asked(named, caplog):
    lines = ["a,b,c,id", "1,2,3,v", "1,,3,w", "1,2,inf,x", "4,5,6,y", ",,,z"]
    text = "\n".join(lines if named else [line.rpartition(",")[0] for line in lines])
    Path("x.csv").write_text(text + "\n")
    stream = open_samples(Path("x.csv"), VECTORS, 2, "skip")
    batches = list(stream.batches)
    assert stream.named
    assert [batch.samples.tolist() for batch in batches] == [[[1, 2, 3]], [[4, 5, 6]]]
    assert [batch.names for batch in batches] == ([("v",), ("y",)] if named else [("0",), ("3",)])
    assert caplog.messages[-1] == (
        "x.csv: 3 of 5 rows have cells that are empty or not finite and are left out, the first of "
        "them line 3."
    )


def test_a_table_of_which_no_row_is_left_is_refused():
    Path("x.csv").write_text("a,b,c\n1,,3\n,2,3\n")
    with pytest.raises(DataError, match=r"x\.csv: each of its 2 rows has empty cells; fill some\."):
        list(open_samples(Path("x.csv"), VECTORS, 1, "skip").batches)


@pytest.mark.parametrize("kind", ["path", "image"])
def test_pictures_of_a_table_that_cannot_be_read_are_left_out_if_asked(kind, caplog):
    for number in (0, 2):
        Image.new("L", (8, 8), 100 + number).save(f"{number}.png")
    Path("1.png").write_bytes(b"no picture")
    files = ["0.png", "1.png", None, "2.png"]
    cells = files if kind == "path" else [file and Path(file).read_bytes() for file in files]
    pq.write_table(pa.table({kind: cells, "client": list("abcd")}), "x.parquet")
    with pytest.raises(DataError, match="on_error=skip"):
        list(open_samples(Path("x.parquet"), IMAGES, 4).batches)
    (batch,) = open_samples(Path("x.parquet"), IMAGES, 4, "skip").batches
    assert batch.samples[:, 0, 0, 0].tolist() == [100, 102]
    assert batch.clients == ("a", "d")
    assert batch.names == (("0.png", "2.png") if kind == "path" else ("0", "3"))
    assert sum("left out" in message for message in caplog.messages) == 1 + (kind == "path")


def test_a_table_of_which_no_picture_can_be_read_is_refused():
    pq.write_table(pa.table({"image": [b"no", b"picture"]}), "x.parquet")
    with pytest.raises(DataError, match="2 of 2 pictures cannot be read"):
        list(open_samples(Path("x.parquet"), IMAGES, 1, "skip").batches)


def test_ragged_lists_are_refused():
    pq.write_table(pa.table({"features": [[1.0, 2.0, 3.0], [1.0]]}), "x.parquet")
    with pytest.raises(DataError, match="features has lists of 1 and of 3 numbers; make them all"):
        read("x.parquet")


def test_a_large_array_is_never_in_memory_whole():
    np.savez_compressed("x.npz", samples=np.zeros((200_000, 30)))  # 48 MB
    fitting = Fitting((30,), images=False, mode=None)
    tracemalloc.start()
    count = sum(len(batch.samples) for batch in open_samples(Path("x.npz"), fitting, 1000).batches)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 200_000
    assert peak < 4e6


def test_damage_shows_where_it_is_read():
    rows = np.random.default_rng(0).normal(size=(1000, 3))
    np.savez("x.npz", samples=rows)
    content = bytearray(Path("x.npz").read_bytes())
    content[20_000] ^= 1
    Path("x.npz").write_bytes(content)
    batches = open_samples(Path("x.npz"), VECTORS, 100).batches
    assert np.array_equal(next(batches).samples, rows[:100].astype(np.float32))
    with pytest.raises(DataError, match=r"x\.npz: it cannot be read \(Bad CRC-32"):
        list(batches)


def test_a_compressed_array_damaged_anywhere_is_refused_in_a_sentence():
    np.savez_compressed("x.npz", samples=np.arange(2700.0).reshape(900, 3))
    whole = Path("x.npz").read_bytes()
    for place in (60, len(whole) // 2):  # in the header of the array, and in its values
        damaged = bytearray(whole)
        damaged[place : place + 40] = b"\xff" * 40
        Path("x.npz").write_bytes(damaged)
        with pytest.raises(
            DataError, match=r"^x\.npz: it cannot be read \([^)]+\); write it again"
        ):
            read("x.npz", 100)


def test_an_array_shorter_than_its_header_says_is_refused_in_a_sentence():
    np.save("x.npy", np.zeros((9, 3)))
    with zipfile.ZipFile("x.npz", "w") as archive:
        archive.writestr("samples.npy", Path("x.npy").read_bytes()[:-5])
    with pytest.raises(DataError, match=r"^x\.npz: it cannot be read \(.+\); write it again\.$"):
        read("x.npz")


def test_colours_become_grey_as_pillow_has_it_and_grey_becomes_colour():
    draw = np.random.default_rng(0)
    colour = draw.integers(0, 256, (5, 9, 7, 3), dtype=np.uint8)
    grey = Fitting((1, 9, 7), images=True, mode="L").array(colour, "x")
    expected = [np.asarray(Image.fromarray(image).convert("L")) for image in colour]
    assert np.array_equal(grey[:, 0], expected)
    again = Fitting((3, 9, 7), images=True, mode="RGB").array(grey[:, 0], "x")
    assert again.shape == (5, 3, 9, 7)
    assert np.array_equal(again, grey.repeat(3, axis=1))


def test_images_of_other_channels_are_taken_as_they_are_or_not_at_all():
    fitting = Fitting((5, 4, 4), images=True, mode=None)
    images = np.zeros((2, 5, 4, 4), dtype=np.uint8)
    assert np.array_equal(fitting.array(images, "x"), images)
    with pytest.raises(DataError, match=r"x: it has shape \(2, 3, 4, 4\) and type uint8, but the"):
        fitting.array(images[:, :3], "x")
    picture = io.BytesIO()
    Image.new("RGB", (4, 4)).save(picture, "PNG")
    with pytest.raises(DataError, match=r"a\.png: it has 3 channels, but the model takes uint8"):
        fitting.readable([picture.getvalue()], ["a.png"])


def test_a_folder_of_mixed_pictures_has_one_warning_of_each_kind(caplog):
    Path("x").mkdir()
    for row in range(6):
        image = Image.new("RGB" if row % 2 else "L", (8, 8) if row < 4 else (20, 16))
        image.save(f"x/{row}.png")
    stream = open_samples(Path("x"), Fitting((1, 8, 8), images=True, mode="L"), 2)
    assert [batch.samples.shape for batch in stream.batches] == [(2, 1, 8, 8)] * 3
    assert [record.message for record in caplog.records] == [
        "2 of 6 images were resized to 8×8.",
        "3 of 6 pictures were converted to L (3 from RGB).",
    ]


def shards(folder, rows, **index):
    entries = write_shard_files(Path(folder), iter(rows), shard_bytes=40)
    assert len(entries) > 1
    write_index(Path(folder), ShardIndex(shards=entries, **index))


def test_shards_of_vectors_keep_their_order_and_names():
    rows = np.arange(15, dtype=np.float32).reshape(5, 3)
    shards("x", [Row(row, 0, -1, f"{row[0]:.0f}.png") for row in rows], kind="vectors", shape=(3,))
    stream, batches = read("x")
    assert (stream.total, stream.named) == (5, True)
    assert np.array_equal(np.concatenate([batch.samples for batch in batches]), rows)
    assert [batch.names for batch in batches] == [
        ("0.png", "3.png"),
        ("6.png", "9.png"),
        ("12.png",),
    ]
    with pytest.raises(
        DataError, match=r"^x: it has shape \(2, 3\) .* takes vectors of 2 features"
    ):
        list(open_samples(Path("x"), PAIRS, 2).batches)


def test_pictures_in_shards_are_read_as_those_of_a_folder():
    content = [encoded(7), b"rubbish", encoded(9)]
    rows = [Row(sample, -1, -1, f"p/{n}.png") for n, sample in enumerate(content)]
    shards("x", rows, kind="pictures", shape=None)
    batches = list(open_samples(Path("x"), IMAGES, 2, "skip").batches)
    assert [batch.names for batch in batches] == [("p/0.png",), ("p/2.png",)]
    assert [int(batch.samples.max()) for batch in batches] == [7, 9]
    with pytest.raises(DataError, match=r"x, p/1\.png is not a readable picture"):
        list(open_samples(Path("x"), IMAGES, 2).batches)
    with pytest.raises(
        DataError, match=r"^x, p/0\.png: a picture, but the model takes vectors of 2"
    ):
        list(open_samples(Path("x"), PAIRS, 2).batches)


def test_shards_without_their_index_are_refused():
    shards("x", [Row(np.zeros(9, np.float32), 0, -1, "a")] * 3, kind="vectors", shape=(9,))
    Path("x/index.json").unlink()
    with pytest.raises(DataError, match=r"^x: there is no index\.json; make shards with"):
        read("x")


PAIRS = Fitting((2,), images=False, mode=None)
IMAGES = Fitting((1, 4, 4), images=True, mode="L")


def read_table(path, fitting=PAIRS):
    batches = list(open_samples(Path(path), fitting, 2).batches)
    samples = np.concatenate([batch.samples for batch in batches])
    return samples, [name for batch in batches for name in batch.names or ()]


def encoded(level):
    stream = io.BytesIO()
    Image.new("L", (4, 4), level).save(stream, "PNG")
    return stream.getvalue()


@pytest.mark.parametrize("column", ["id", "name", "sample_id", "file_name", "filename"])
def test_names_in_a_csv_stay_text(column):
    Path("x.csv").write_text(f"{column},a,b\n007,1,2\n7,3,4\n1e3,5,6\n")
    samples, names = read_table("x.csv")
    assert samples.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert names == ["007", "7", "1e3"]


def test_a_column_of_clients_is_read_along_and_is_no_feature():
    Path("x.csv").write_text("client,a,b\n007,1,2\n,3,4\nsite a,5,6\n")
    stream = open_samples(Path("x.csv"), PAIRS, 2)
    assert stream.of_clients
    batches = list(stream.batches)
    assert [client for batch in batches for client in batch.clients] == ["007", "", "site a"]
    assert np.concatenate([batch.samples for batch in batches]).shape == (3, 2)
    pq.write_table(pa.table({"client": [7, None], "a": [1, 2], "b": [3, 4]}), "x.parquet")
    assert next(open_samples(Path("x.parquet"), PAIRS, 2).batches).clients == ("7", "")
    Path("y.csv").write_text("a,b\n1,2\n")
    assert not open_samples(Path("y.csv"), PAIRS, 2).of_clients


@pytest.mark.parametrize("kind", ["pictures", "vectors"])
def test_shards_tell_whose_samples_they_are(kind):
    samples = {
        "pictures": [encoded(1), b"no picture", encoded(2)],
        "vectors": [np.zeros(2, np.float32)] * 3,
    }[kind]
    shape = {"pictures": (4, 4), "vectors": (2,)}[kind]
    fitting = {"pictures": IMAGES, "vectors": PAIRS}[kind]
    rows = [
        Row(one, -1, client, f"{client}") for one, client in zip(samples, (1, 0, -1), strict=True)
    ]
    entries = write_shard_files(Path("shards"), iter(rows), 1 << 20)
    index = ShardIndex(kind=kind, shape=shape, clients=("ann", "bob"), shards=entries)
    write_index(Path("shards"), index)
    stream = open_samples(Path("shards"), fitting, 2, "skip")
    assert stream.of_clients
    found = [
        pair for batch in stream.batches for pair in zip(batch.names, batch.clients, strict=True)
    ]
    expected = [("1", "bob"), ("0", "ann"), ("-1", "")]
    assert found == (expected if kind == "vectors" else [expected[0], expected[2]])


@pytest.mark.parametrize("column", ["path", "file"])
def test_files_called_by_numbers_are_found(column):
    for level, name in enumerate(("007", "7")):
        Path(name).write_bytes(encoded(level))
    Path("x.csv").write_text(f"{column}\n007\n7\n")
    samples, names = read_table("x.csv", IMAGES)
    assert (samples[:, 0, 0, 0].tolist(), names) == ([0, 1], ["007", "7"])


def test_numbers_that_name_rows_are_no_features_in_parquet_either():
    pq.write_table(pa.table({"name": [8, 9], "a": [1.0, 2], "b": [3.0, 4]}), "x.parquet")
    samples, names = read_table("x.parquet")
    assert (samples.tolist(), names) == ([[1, 3], [2, 4]], ["8", "9"])


def test_text_and_bytes_of_every_kind_are_read():
    Path("a.png").write_bytes(encoded(7))
    paths, content = pa.array(["a.png"]), pa.array([encoded(9)])
    for kind in (pa.string(), pa.large_string()):
        pq.write_table(pa.table({"path": paths.cast(kind)}), "x.parquet")
        assert read_table("x.parquet", IMAGES)[0].max() == 7
    pq.write_table(pa.table({"path": paths.dictionary_encode()}), "x.parquet")
    assert read_table("x.parquet", IMAGES)[0].max() == 7
    kinds = pa.binary(), pa.large_binary(), pa.binary(len(encoded(9)))
    for column in (*map(content.cast, kinds), content.dictionary_encode()):
        pq.write_table(pa.table({"img": column}), "x.parquet")
        assert read_table("x.parquet", IMAGES)[0].max() == 9


def test_columns_of_one_name_are_refused_where_they_are_read():
    Path("x.csv").write_text("a,a,note,note\n1,2,x,y\n")
    with pytest.raises(DataError) as refusal:
        read_table("x.csv")
    assert str(refusal.value) == "x.csv: it has 2 columns a; give each a name of its own."
    Path("x.csv").write_text("id,id,a,b\n1,2,3,4\n")
    with pytest.raises(DataError, match="it has 2 columns id; give each a name of its own"):
        read_table("x.csv")
    Path("x.csv").write_text("a,b,note,note\n1,2,x,y\n")
    assert read_table("x.csv")[0].tolist() == [[1, 2]]


def test_a_table_of_a_header_alone_holds_no_row():
    Path("x.csv").write_text("id,a,note\n")
    with pytest.raises(DataError, match=r"x\.csv: it (holds no row|has the columns)"):
        read_table("x.csv")
    with pytest.raises(DataError, match=r"x\.csv: "):
        open_samples(Path("x.csv"), PAIRS, 2, columns=TableColumns(features=("id",)))


FILES = "; give the files' paths as text."
BYTES = "; give pictures' bytes, a struct with a field bytes, or name a column of paths path."
REFUSED = {
    "numbers": ({"path": [1, 2]}, f"x.parquet: path is of type int64{FILES}"),
    "binary": ({"file": [b"a.png"]}, f"x.parquet: file is of type binary{FILES}"),
    "text": ({"image": ["a.png"]}, f"x.parquet: image is of type string{BYTES}"),
    "integers": ({"img": [5]}, f"x.parquet: img is of type int64{BYTES}"),
    "no bytes": (
        {"image": [{"path": "a.png"}]},
        f"x.parquet: image is of type struct<path: string>{BYTES}",
    ),
    "text as bytes": (
        {"image": [{"bytes": "a.png"}]},
        f"x.parquet: image is of type struct<bytes: string>{BYTES}",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_columns_of_another_type_are_refused_in_a_sentence(kind):
    columns, sentence = REFUSED[kind]
    pq.write_table(pa.table(columns), "x.parquet")
    with pytest.raises(DataError) as refusal:
        read_table("x.parquet", IMAGES)
    assert str(refusal.value) == sentence


def test_a_compressed_array_that_grows_too_much_is_refused():
    with (
        zipfile.ZipFile("x.npz", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("samples.npy", "w", force_zip64=True) as file,
    ):
        shape = {"descr": "<f4", "fortran_order": False, "shape": (300, 1 << 18)}
        np.lib.format.write_array_header_1_0(file, shape)
        for _ in range(300):
            file.write(bytes(1 << 20))
    with pytest.raises(
        DataError, match=r"x\.npz: it cannot be read \(\d+ compressed bytes grow to"
    ):
        open_samples(Path("x.npz"), Fitting((1 << 18,), images=False, mode=None), 300)


@pytest.mark.parametrize("ending", ["npy", "npz"])
@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (10000000000000000000000000, 3), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 3), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807, 0), }",
        "'''",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 3",
    ],
)
@pytest.mark.timeout(60)
def test_a_header_that_lies_is_refused_in_a_sentence(ending, header):
    content = header.encode().ljust(117) + b"\n"
    content = b"\x93NUMPY\x01\x00" + len(content).to_bytes(2, "little") + content + bytes(64)
    if ending == "npy":
        Path("x.npy").write_bytes(content)
    else:
        with zipfile.ZipFile("x.npz", "w") as archive:
            archive.writestr("samples.npy", content)
    with pytest.raises(DataError, match=rf"^x\.{ending}: it (cannot be read|holds no sample) \("):
        read(f"x.{ending}")


def test_an_array_that_is_cut_short_while_it_is_read_is_refused():
    """Mapped into memory, it would end the process by a signal."""
    np.save("x.npy", np.zeros((100_000, 3), np.float32))
    batches = open_samples(Path("x.npy"), VECTORS, 100).batches
    next(batches)
    os.truncate("x.npy", 4096)
    with pytest.raises(DataError, match=r"^x\.npy: it cannot be read \(.+\); write it again\.$"):
        list(batches)


@pytest.mark.parametrize("order", ["C", "F"])
def test_an_array_is_read_in_either_order(order):
    rows = np.random.default_rng(0).normal(size=(1000, 3))
    np.save("x.npy", np.asarray(rows, order=order))
    found = [batch.samples for batch in open_samples(Path("x.npy"), VECTORS, 100).batches]
    np.testing.assert_array_equal(np.concatenate(found), rows.astype(np.float32))
