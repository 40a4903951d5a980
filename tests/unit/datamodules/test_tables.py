"""Tables to predict: names stay text, and columns that cannot be read are refused in a sentence."""

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from coterie.errors import DataError
from datamodules.fitting import Fitting
from datamodules.streams import open_samples

VECTORS = Fitting((2,), images=False, mode=None)
IMAGES = Fitting((1, 4, 4), images=True, mode="L")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def read(path, fitting=VECTORS):
    batches = list(open_samples(Path(path), fitting, 2).batches)
    samples = np.concatenate([batch.samples for batch in batches])
    return samples, [name for batch in batches for name in batch.names or ()]


def encoded(level):
    stream = io.BytesIO()
    Image.new("L", (4, 4), level).save(stream, "PNG")
    return stream.getvalue()


@pytest.mark.parametrize("column", ["id", "name"])
def test_names_in_a_csv_stay_text(column):
    Path("x.csv").write_text(f"{column},a,b\n007,1,2\n7,3,4\n1e3,5,6\n")
    samples, names = read("x.csv")
    assert samples.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert names == ["007", "7", "1e3"]


@pytest.mark.parametrize("column", ["path", "file"])
def test_files_called_by_numbers_are_found(column):
    for level, name in enumerate(("007", "7")):
        Path(name).write_bytes(encoded(level))
    Path("x.csv").write_text(f"{column}\n007\n7\n")
    samples, names = read("x.csv", IMAGES)
    assert (samples[:, 0, 0, 0].tolist(), names) == ([0, 1], ["007", "7"])


def test_numbers_that_name_rows_are_no_features_in_parquet_either():
    pq.write_table(pa.table({"name": [8, 9], "a": [1.0, 2], "b": [3.0, 4]}), "x.parquet")
    samples, names = read("x.parquet")
    assert (samples.tolist(), names) == ([[1, 3], [2, 4]], ["8", "9"])


def test_text_and_bytes_of_every_kind_are_read():
    Path("a.png").write_bytes(encoded(7))
    paths, content = pa.array(["a.png"]), pa.array([encoded(9)])
    for kind in (pa.string(), pa.large_string()):
        pq.write_table(pa.table({"path": paths.cast(kind)}), "x.parquet")
        assert read("x.parquet", IMAGES)[0].max() == 7
    pq.write_table(pa.table({"path": paths.dictionary_encode()}), "x.parquet")
    assert read("x.parquet", IMAGES)[0].max() == 7
    kinds = pa.binary(), pa.large_binary(), pa.binary(len(encoded(9)))
    for column in (*map(content.cast, kinds), content.dictionary_encode()):
        pq.write_table(pa.table({"img": column}), "x.parquet")
        assert read("x.parquet", IMAGES)[0].max() == 9


def test_columns_of_one_name_are_refused_where_they_are_read():
    Path("x.csv").write_text("a,a,note,note\n1,2,x,y\n")
    with pytest.raises(DataError) as refusal:
        read("x.csv")
    assert str(refusal.value) == "x.csv: it has 2 columns a; give each a name of its own."
    Path("x.csv").write_text("id,id,a,b\n1,2,3,4\n")
    with pytest.raises(DataError, match="it has 2 columns id; give each a name of its own"):
        read("x.csv")
    Path("x.csv").write_text("a,b,note,note\n1,2,x,y\n")
    assert read("x.csv")[0].tolist() == [[1, 2]]


FILES = "; give the files' paths as text."
BYTES = "; give pictures' bytes or a struct with a field bytes, or call a column of files path."
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
        read("x.parquet", IMAGES)
    assert str(refusal.value) == sentence
