"""Folders and tables as people have them: litter, halves, odd names, pandas and Excel."""

import codecs
import io
import logging
import os
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from coterie.contract.data import Unreadable
from coterie.datamodules.checking import check_data
from coterie.datamodules.csv_files import Dialect, dialect_of
from coterie.datamodules.custom_data import number_classes
from coterie.datamodules.fitting import Fitting
from coterie.datamodules.folders import ClassFolders, ClientFolders, ImageFolder
from coterie.datamodules.importing import import_data
from coterie.datamodules.manifest import Manifest
from coterie.datamodules.npz import NPZ
from coterie.datamodules.shards import Shards
from coterie.datamodules.spelling import spelled
from coterie.datamodules.streams import open_samples
from coterie.errors import ConfigError, DataError
from coterie.tracking.skipped import check_same_skipped, write_skipped

PIXELS = np.arange(64, dtype=np.uint8).reshape(8, 8)


def png(shift=0):
    stream = io.BytesIO()
    Image.fromarray(PIXELS + np.uint8(shift)).save(stream, "PNG")
    return stream.getvalue()


def place(root, *names):
    """A picture under each of these names, which may be bytes."""
    for number, name in enumerate(names):
        path = os.path.join(os.fsencode(root), os.fsencode(name))  # noqa: PTH118
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
        with open(path, "wb") as file:  # noqa: PTH123
            file.write(png(number))


def arrays(cls, path, **keys):
    return cls(cls.Config(path=str(path), **keys)).arrays()


LITTER = ("__MACOSX", "@eaDir", "lost+found", "$RECYCLE.BIN", "System Volume Information")


@pytest.mark.parametrize("cls", [ClassFolders, ClientFolders, ImageFolder])
def test_folders_of_systems_are_passed_over_and_told(tmp_path, cls, caplog):
    place(tmp_path, "cat/1.png", "dog/2.png", "cat/@eaDir/1.png/thumb.png", ".thumbnails/3.png")
    place(tmp_path, *(f"{name}/x.png" for name in LITTER))
    (tmp_path / "cat" / "Thumbs.db").write_bytes(b"x")
    with caplog.at_level(logging.WARNING):
        data = arrays(cls, tmp_path)
    assert len(data.samples) == 2
    assert "cat" in (*data.classes, *data.owner_names, "cat")
    assert set(data.classes) <= {"cat", "dog"}
    assert set(data.owner_names) <= {"cat", "dog"}
    assert "folders that operating systems make are skipped" in caplog.text
    assert "@eaDir" in caplog.text
    assert "1 .db" in caplog.text


@pytest.mark.parametrize(
    ("train", "test"), [("train", "val"), ("Training", "Testing"), ("train", "valid")]
)
def test_halves_are_no_classes(tmp_path, train, test, caplog):
    place(tmp_path, f"{train}/cat/1.png", f"{train}/dog/2.png", f"{test}/dog/3.png")
    with caplog.at_level(logging.WARNING):
        data = arrays(ClassFolders, tmp_path)
    assert data.classes == ("cat", "dog")
    assert data.test_labels.tolist() == [1]
    assert f"{test} is taken as the test set" in caplog.text


def test_a_third_half_is_told(tmp_path, caplog):
    place(tmp_path, *(f"{half}/{name}/1.png" for half in ("train", "val", "test") for name in "ab"))
    with caplog.at_level(logging.WARNING):
        data = arrays(ClassFolders, tmp_path)
    assert (len(data.samples), len(data.test_samples)) == (2, 2)
    assert "train holds the classes, and val beside it are left out" in caplog.text


def test_a_folder_train_alone_holds_classes_or_is_one(tmp_path):
    place(tmp_path / "alone", "train/a/1.png", "train/b/2.png")
    assert arrays(ClassFolders, tmp_path / "alone").classes == ("a", "b")
    place(tmp_path / "class", "train/1.png", "car/2.png", "bus/3.png")
    assert arrays(ClassFolders, tmp_path / "class").classes == ("bus", "car", "train")


def test_halves_are_no_clients_and_no_classes_of_clients(tmp_path):
    place(tmp_path / "a", "train/ann/1.png", "val/ann/2.png")
    with pytest.raises(DataError, match=r"folders are train and val, which .* not clients"):
        arrays(ClientFolders, tmp_path / "a")
    place(tmp_path / "b", "ann/train/1.png", "ann/val/2.png", "bob/train/3.png")
    with pytest.raises(DataError, match=r"folders are train and val, which .* not classes"):
        arrays(ClientFolders, tmp_path / "b")


LATIN = "Bl\udce4tter"  # in Latin-1, as Python reads it


@pytest.mark.parametrize("cls", [ClassFolders, ClientFolders, ImageFolder])
def test_names_that_are_no_utf8_have_one_spelling(tmp_path, cls):
    root = tmp_path / "data"
    place(root, f"{LATIN}/H\udcfclse.png", "other/2.png")
    place(root, "other/broken.png")
    (root / "other" / "broken.png").write_bytes(b"")
    data = cls(cls.Config(path=str(root), on_error="skip"))
    found = data.arrays()
    names = {*found.classes, *found.owner_names} or {r"Bl\xe4tter", "other"}
    assert names == {r"Bl\xe4tter", "other"}
    assert any(name.endswith(r"Bl\xe4tter/H\xfclse.png") for name in found.names)
    for name in (*found.names, *names, *(one.name for one in found.skipped)):
        name.encode()
    out = tmp_path / "check"
    out.mkdir()
    assert check_data(data, out).bad == 1
    assert r"other/broken.png" in (out / "unreadable.csv").read_text(encoding="utf-8")
    import_data(data, tmp_path / "shards", shard_bytes=1 << 20)
    again = arrays(Shards, tmp_path / "shards", stream=False)
    assert again.classes == found.classes
    assert again.owner_names == found.owner_names


def test_predicted_names_can_be_written(tmp_path):
    place(tmp_path, f"{LATIN}/1.png")
    stream = open_samples(tmp_path, Fitting((1, 8, 8), images=True, mode="L"), 2)
    assert next(stream.batches).names == (r"Bl\xe4tter/1.png",)


@pytest.mark.parametrize("folder", ["data", "ä/data", "a\u0308 [1]"])
@pytest.mark.parametrize("cls", [ClassFolders, ClientFolders, ImageFolder])
def test_a_sample_is_called_by_its_path_in_the_folder_here_and_by_predict(tmp_path, cls, folder):
    root = tmp_path / folder
    place(root, "ann/1.png", "bob/2.png", "bob/ü.png")
    names = ["ann/1.png", "bob/2.png", "bob/ü.png"]
    data = cls(cls.Config(path=f"{root}/"))
    assert [*data.arrays().names] == names
    fitting = Fitting((1, 8, 8), images=True, mode="L")
    predicted = [name for batch in open_samples(root, fitting, 2).batches for name in batch.names]
    assert predicted == names
    import_data(data, tmp_path / "shards", shard_bytes=1 << 20)
    assert [*arrays(Shards, tmp_path / "shards").names] == names


def test_samples_of_a_training_and_a_test_folder_are_told_apart(tmp_path):
    place(tmp_path, "train/ann/1.png", "test/ann/1.png")
    data = ClassFolders(ClassFolders.Config(path=str(tmp_path)))
    assert [*data.arrays().names] == ["train/ann/1.png"]
    assert [*data.arrays().test_names] == ["test/ann/1.png"]
    both = ClassFolders(ClassFolders.Config(path=str(tmp_path), split="all")).arrays()
    assert [*both.names] == ["train/ann/1.png", "test/ann/1.png"]


def test_an_error_names_the_whole_path(tmp_path):
    place(tmp_path, "ann/1.png", "bob/2.png")
    (tmp_path / "bob" / "2.png").write_bytes(b"")
    with pytest.raises(DataError, match=re.escape(f"{tmp_path}/bob/2.png")):
        arrays(ClassFolders, tmp_path)


def test_two_names_that_differ_in_a_broken_byte_stay_two(tmp_path):
    place(tmp_path, "a\udce4/1.png", "a\udcf6/2.png", "a\ufffd/3.png")
    assert arrays(ClassFolders, tmp_path).classes == (r"a\xe4", r"a\xf6", "a\ufffd")


def test_accents_of_two_forms_are_one_class(tmp_path, caplog):
    one, other = (unicodedata.normalize(form, "Käse") for form in ("NFC", "NFD"))
    place(tmp_path, f"train/{one}/1.png", f"train/{other}/2.png", f"test/{other}/3.png")
    with caplog.at_level(logging.WARNING):
        data = arrays(ClassFolders, tmp_path)
    assert data.classes == (one,)
    assert (len(data.samples), data.test_labels.tolist()) == (2, [0])
    assert "classes Käse are spelled in several ways" in caplog.text


def test_very_long_names(tmp_path):
    place(tmp_path, f"{'a' * 250}/{'b' * 250}.png", "c/1.png")
    assert arrays(ClassFolders, tmp_path).classes == ("a" * 250, "c")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("\x1b]52;c;eA==\x07.png", r"\x1b]52;c;eA==\x07.png"),
        ("a\nb\tc", r"a\x0ab\x09c"),
        ("é\\\x9b", r"é\\\x9b"),
    ],
)
def test_control_characters_are_escaped(name, told):
    assert spelled(name) == told
    assert spelled(told) == told


def test_names_in_tables_and_arrays_have_no_escapes(tmp_path):
    data, out = tmp_path / "data", tmp_path / "out"
    out.mkdir()
    place(data, "a/\x1b]52;c;eA==\x07.png", "b\x1b[2J/1.png")
    (data / "b\x1b[2J" / "broken\x1b[31m.png").write_bytes(b"no picture")
    check_data(ClassFolders(ClassFolders.Config(path=str(data))), out)
    told = (out / "unreadable.csv").read_text()
    assert r"broken\x1b[31m.png" in told
    assert "\x1b" not in told
    found = arrays(ClassFolders, data, on_error="skip")
    assert found.classes == ("a", r"b\x1b[2J")


@pytest.mark.parametrize("name", ["plain", "Käse", "日本", r"back\slash", "a b"])
def test_spelling_leaves_whole_names_alone(name):
    assert spelled(name) == name


def test_spelling_can_be_read_back():
    assert spelled("a\\\udce4") == r"a\\\xe4"
    back = spelled("a\\\udce4é").encode("raw_unicode_escape").decode("unicode_escape")
    assert back == "a\\äé"


ASCII_SHELL = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize("name", ["Käse", "日本", "B\udce4r"])
def test_a_class_has_one_name_in_every_locale(name):
    code = "import sys; from coterie.datamodules.spelling import spelled; sys.stdout.write("
    done = subprocess.run(
        [sys.executable, "-c", f"{code}ascii(spelled(sys.argv[1])))", name],
        env={**os.environ, **ASCII_SHELL},
        capture_output=True,
        check=True,
    )
    assert done.stdout.decode() == ascii(spelled(name))


def test_what_was_left_out_is_compared_by_its_spelling(tmp_path):
    skipped = [Unreadable(spelled("\udce4.png"), "is empty")]
    write_skipped(tmp_path / "s.csv", skipped)
    check_same_skipped(tmp_path / "s.csv", skipped)


@pytest.mark.parametrize(
    ("values", "labels", "classes"),
    [
        ([0.0, 1.0, float("nan"), 3.0], [0, 1, -1, 2], ("0", "1", "3")),
        ([True, False, True], [1, 0, 1], ("False", "True")),
        ([" cat", "cat", "cat ", "dog"], [0, 0, 0, 1], ("cat", "dog")),
        (["007", "7", None, ""], [0, 1, -1, -1], ("007", "7")),
        ([1, "a", None], [0, 1, -1], ("1", "a")),
        ([2, 10, -1], [0, 1, -1], ("2", "10")),
        (["Ka\u0308se", "Käse"], [0, 0], ("Käse",)),
        ([float("nan")] * 2, [-1, -1], ()),
    ],
)
def test_labels_of_tables(values, labels, classes):
    found, names = number_classes(values, "label")
    assert (found.tolist(), names) == (labels, classes)


def test_labels_that_are_merged_are_told(caplog):
    number_classes([" cat", "cat"], "x.csv, column label,")
    assert "x.csv, column label, some labels: cat are spelled in several ways" in caplog.text


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (0.5, "label holds 0.5, a fraction; give classes as whole numbers or text"),
        (pd.Timestamp("2024-01-01"), "label holds values of the type Timestamp; labels and"),
        (b"x", "label holds values of the type bytes"),
    ],
)
def test_what_no_label_is(value, sentence):
    with pytest.raises(DataError, match=sentence):
        number_classes([value, value], "label")


def listed(tmp_path, text, **keys):
    place(tmp_path, "a.png", "b.png", "c.png")
    (tmp_path / "list.csv").write_bytes(text)
    columns = {"label_column": "label", **keys}
    return arrays(Manifest, tmp_path / "list.csv", **columns)


@pytest.mark.parametrize(
    "text",
    [
        "path,label\na.png,Bär\nb.png,Kuh\nc.png,Bär\n".encode(),
        "path;label\r\na.png;Bär\r\nb.png;Kuh\r\nc.png;Bär\r\n".encode("cp1252"),
        codecs.BOM_UTF8 + "path,label\r\na.png,Bär\r\nb.png,Kuh\r\nc.png,Bär\r\n".encode(),
        "path\tlabel\na.png\tBär\nb.png\tKuh\nc.png\tBär\n".encode("utf-16"),
        '"path","label"\n"a.png","Bär"\n"b.png","Kuh"\n"c.png","Bär"\n'.encode(),
        "path\tlabel\na.png\tBär\nb.png\tKuh\nc.png\tBär\n".encode("utf-16-le"),
        "path\tlabel\na.png\tBär\nb.png\tKuh\nc.png\tBär\n".encode("utf-16-be"),
        "sep=;\r\npath;label\r\na.png;Bär\r\nb.png;Kuh\r\nc.png;Bär\r\n".encode("utf-8-sig"),
        "sep=|\npath|label\na.png|Bär\nb.png|Kuh\nc.png|Bär\n".encode(),
    ],
)
def test_tables_as_programs_write_them(tmp_path, text):
    data = listed(tmp_path, text)
    assert (data.labels.tolist(), data.classes) == ([0, 1, 0], ("Bär", "Kuh"))


@pytest.mark.parametrize(
    ("cells", "labels", "classes"),
    [
        (("1.0", "0.0", ""), [1, 0, -1], ("0", "1")),
        (("True", "False", "True"), [1, 0, 1], ("False", "True")),
        (("007", "010", "007"), [0, 1, 0], ("007", "010")),
        (("10", "9", "-1"), [1, 0, -1], ("9", "10")),
        ((" cat", "cat", '"cat "'), [0, 0, 0], ("cat",)),
        (("1.0", "0.0", "nan"), [1, 0, -1], ("0", "1")),
        (("1", "NA", "0"), [1, -1, 0], ("0", "1")),
        (("Li", "NA", "Li"), [0, 1, 0], ("Li", "NA")),
        (('"1,0"', '"2,0"', ""), [0, 1, -1], ("1", "2")),
    ],
)
def test_labels_of_csv(tmp_path, cells, labels, classes):
    rows = "".join(f"{name}.png,{cell}\n" for name, cell in zip("abc", cells, strict=True))
    data = listed(tmp_path, f"path,label\n{rows}".encode())
    assert (data.labels.tolist(), data.classes) == (labels, classes)


def test_measurements_are_no_labels(tmp_path):
    with pytest.raises(DataError, match=r"holds 0\.25, a fraction; give classes"):
        listed(tmp_path, b"path,label\na.png,0.25\nb.png,1.5\nc.png,3\n")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"path,label\na.png,1\n,2\n", "column path, names no picture in row 1; give one"),
        (b"path,label,label\na.png,1,2\n", "has 2 columns of that name; give each its own"),
        (b"path;label\na.png;1,5\nb.png;2,0\nc.png;1,5\n", r"holds 1\.5, a fraction"),
    ],
)
def test_tables_that_are_refused(tmp_path, text, sentence):
    with pytest.raises(DataError, match=sentence):
        listed(tmp_path, text)


def test_a_workbook_is_told_as_one(tmp_path):
    (tmp_path / "list.XLSX").write_bytes(b"PK\x03\x04")
    with pytest.raises(DataError, match="it is a workbook; save its sheet as CSV"):
        arrays(Manifest, tmp_path / "list.XLSX", label_column="label")


def test_windows_paths_and_other_accents_in_tables(tmp_path):
    place(tmp_path, "in/a.png", unicodedata.normalize("NFD", "in/ü.png"), "in/c.png")
    text = f"path,label\nin\\a.png,1\nin\\{unicodedata.normalize('NFC', 'ü')}.png,0\nin/c.png,1\n"
    (tmp_path / "list.csv").write_text(text, encoding="utf-8")
    data = arrays(Manifest, tmp_path / "list.csv", label_column="label")
    assert data.labels.tolist() == [1, 0, 1]


def test_capital_endings_and_tabs(tmp_path):
    for ending, sign in ((".CSV", ","), (".tsv", "\t")):
        place(tmp_path, "a.png", "b.png")
        path = tmp_path / f"list{ending}"
        path.write_text(f"path{sign}label\na.png{sign}x\nb.png{sign}y\n")
        assert arrays(Manifest, path, label_column="label").classes == ("x", "y")


def test_how_a_table_is_written_is_found_out(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(b'"a;b",c,d\n1,2,3\n')
    assert dialect_of(path) == Dialect()
    path.write_bytes(b"a;b\n0,5;1,25\n")
    assert dialect_of(path) == Dialect(delimiter=";", decimal=",")
    path.write_bytes(b"a\tb\n1,000\t2\n" * 2)
    assert dialect_of(path).delimiter == "\t"


EXCEL = """Nr;Datum;Länge (cm);Höhe;Art;Ort
1;01.03.2024;0,5;1;süß;A
2;02.03.2024;1,5;2;bitter;B
3;03.03.2024;2,5;3;;B
4;04.03.2024;3,5;4;NaN;A
"""


def test_a_table_of_numbers_is_trained_on_as_excel_writes_it(tmp_path, caplog):
    path = tmp_path / "x.csv"
    path.write_bytes(EXCEL.replace("\n", "\r\n").encode("cp1252"))
    named = {"label_column": "Art", "client_column": "Ort"}
    data = arrays(Manifest, path, **named)
    assert data.samples[:].tolist() == [[n, n - 0.5, n] for n in (1, 2, 3, 4)]
    assert "features are the columns Nr, Länge (cm), Höhe; data.feature_columns=" in caplog.text
    assert "left out of the features: Datum (text, such as" in caplog.text
    assert (data.classes, data.owner_names) == (("bitter", "süß"), ("A", "B"))
    chosen = arrays(Manifest, path, **named, feature_columns=("Höhe", "Länge (cm)"))
    assert chosen.samples[:2].tolist() == [[1, 0.5], [2, 1.5]]


def test_features_in_ranges_are_brought_to_like_scales(tmp_path):
    (tmp_path / "x.csv").write_text("a,b,c\n10,-5,1\n20,5,2\n35,15,3\n")
    found = arrays(Manifest, tmp_path / "x.csv", feature_ranges={"b": (-5, 15), "a": (10, 30)})
    assert found.samples.tolist() == [[0, 0, 1], [0.5, 0.5, 2], [1.25, 1, 3]]
    assert found.features == ("a", "b", "c")


@pytest.mark.parametrize("name", ["file", "image"])
def test_a_table_that_lists_files_is_no_table_of_measurements(tmp_path, name):
    (tmp_path / "x.csv").write_text(f"{name},age\na.png,1\nb.png,2\n")
    with pytest.raises(DataError, match=f"give data.picture_column={name}, or data.feature_"):
        arrays(Manifest, tmp_path / "x.csv")
    found = arrays(Manifest, tmp_path / "x.csv", feature_columns=("age",))
    assert found.samples.tolist() == [[1], [2]]


def test_a_number_that_is_left_out_is_told(tmp_path, caplog):
    (tmp_path / "x.csv").write_text("id,age\n7,1\n8,2\n")
    assert arrays(Manifest, tmp_path / "x.csv").samples.tolist() == [[1], [2]]
    assert "left out of the features: id (" in caplog.text


@pytest.mark.parametrize(
    ("cells", "told", "without_cells"),
    [
        (["1.5", "2", "n/a", "4"], "numbers, but 'n/a' in line 4", "numbers, but text in line 4"),
        (["<0.1", "2", "", "4", "?"], "text, such as '<0.1'", "text"),
        (
            ["<0.1", "2", "", "4", "5"],
            "numbers, but '<0.1' in line 2",
            "numbers, but text in line 2",
        ),
        (['"1,5"', '"2,5"'], "numbers with commas", "numbers with commas"),
        (["$7", "$8"], "text, such as '$7'", "text"),
    ],
)
def test_texts_among_numbers_are_shown(tmp_path, caplog, cells, told, without_cells):
    """But not in an error, which leaves the machine of node-local data."""
    lines = [f"{cell},{number}" for number, cell in enumerate(cells)]
    (tmp_path / "x.csv").write_text("\n".join(["weight,age", *lines]) + "\n")
    if "number" in told:
        refused = re.escape(f"features are not of numbers alone: weight ({without_cells}); correct")
        with pytest.raises(DataError, match=refused):
            arrays(Manifest, tmp_path / "x.csv")
        arrays(Manifest, tmp_path / "x.csv", feature_columns=("age",))
    else:
        arrays(Manifest, tmp_path / "x.csv")
        assert f"left out of the features: weight ({told})." in caplog.text
    with pytest.raises(DataError, match=re.escape(f"weight is of type {without_cells}, and")):
        arrays(Manifest, tmp_path / "x.csv", feature_columns=("weight", "age"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("# exported\na,b,c\n1,2,3\n", "a line has 3 columns where the first has 1; take out"),
        ("a,b\n1,2\ntotal\n", "a line has 1 columns where the first has 2; take out"),
        ("age,bp\nyears,mmHg\n1,2\n3,4\n", "no column has numbers alone: age (numbers, but text"),
        (
            "age,sex\nx,m\n1,f\n3,m\n",
            "no column has numbers alone: age (numbers, but text in line 2)",
        ),
        ("a,b\nx,y\n", "data.picture_column=path: x.csv has the columns a, b; name one of them."),
    ],
)
def test_a_csv_with_lines_that_are_none_names_them(tmp_path, monkeypatch, text, told):
    monkeypatch.chdir(tmp_path)
    Path("x.csv").write_text(text)
    with pytest.raises(DataError, match=re.escape(told)):
        arrays(Manifest, Path("x.csv"))


def test_a_csv_without_a_header_is_told_to_lack_it(tmp_path):
    (tmp_path / "x.csv").write_text("71,1.5,f\n2,2.5,m\n")
    with pytest.raises(DataError, match="or give the columns names in a first line"):
        arrays(Manifest, tmp_path / "x.csv", label_column="sex")


@pytest.mark.parametrize("name", ["x.json", "x.csv.gz", "x"])
def test_what_is_no_table_is_told_as_that(tmp_path, name):
    (tmp_path / name).write_bytes(b"{}" * 99)
    with pytest.raises(DataError, match="neither CSV by its name nor Parquet by its content"):
        arrays(Manifest, tmp_path / name)


@pytest.mark.parametrize("ends", [(1, 1), (2, 1)])
def test_ranges_that_are_none_are_refused(tmp_path, ends):
    (tmp_path / "x.csv").write_text("a\n1\n2\n")
    with pytest.raises(ConfigError, match="a range goes from its lower to its upper end"):
        arrays(Manifest, tmp_path / "x.csv", feature_ranges={"a": ends})


@pytest.mark.parametrize(
    ("text", "keys", "told"),
    [
        ("a,b\n1,2\n", {"feature_ranges": {"c": (0, 1)}}, "no feature c; its features are a, b"),
        (
            "a,b\n1,2\n",
            {"feature_ranges": {"b": (0, 1)}, "feature_columns": ("a",)},
            "no feature b; its features are a",
        ),
        (
            "a,b,c\n1,,1\n2,3,4\n5,,\n",
            {},
            r"empty or not finite: b in 2 of 3 rows \(line 2 first\), c in 1 of 3 rows \(line 4 ",
        ),
        ("a,b\n1,2\nNaN,3\n", {}, r"empty or not finite: a in 1 of 2 rows \(line 3 first\); fill"),
        ("sep=;\na;b\n1;2\ninf;3\n", {}, r"a in 1 of 2 rows \(line 4 first\); fill"),
        ("a,b\n1,x\n", {"feature_columns": ("b",)}, r"its column b is of type text, and feat"),
        ("a,b\n1,2\n", {"feature_columns": ("c",)}, "it has no column c, which is a feature"),
        ("a,b\n1,2\n", {"picture_column": "c"}, "data.picture_column=c: .* has the columns a, b"),
        ("a,b\nx,y\n", {}, "data.picture_column=path: .* has the columns a, b; name one"),
        ("a,b\n", {"feature_columns": ("a",)}, "it has no rows; add some"),
    ],
)
def test_tables_of_numbers_with_a_fault_are_refused(tmp_path, text, keys, told):
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(DataError, match=told):
        arrays(Manifest, tmp_path / "x.csv", **keys)


def test_columns_of_one_name_are_refused_but_for_those_without(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("a,b,b,y\n1,5,5,2\n3,5,5,4\n")
    with pytest.raises(DataError, match="it has 2 columns b; give each a name of its own"):
        arrays(Manifest, path)
    with pytest.raises(DataError, match="it has 2 columns b; give each a name of its own"):
        arrays(Manifest, path, feature_columns=("a", "b"))
    for head, keys in (
        ("a,b,b,y", {}),
        ("a,,y,", {}),
        ("a,b,b,y", {"feature_columns": ("a", "y")}),
    ):
        path.write_text(
            f"{head}\n1,x,2,x\n3,x,4,x\n" if head == "a,,y," else f"{head}\n1,x,x,2\n3,x,x,4\n"
        )
        assert arrays(Manifest, path, **keys).samples.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("head", ["", "Unnamed: 0", "client"])
def test_a_table_of_numbers_none_of_which_is_a_feature_is_refused(tmp_path, head):
    (tmp_path / "x.csv").write_text(f"{head},\n1,2\n3,4\n")
    with pytest.raises(DataError, match="none of its columns of numbers is a feature by its name"):
        arrays(Manifest, tmp_path / "x.csv")


def test_rows_with_gaps_are_left_out_and_listed(tmp_path, caplog):
    path = tmp_path / "x.csv"
    path.write_text("a,b,c,k,s\n1,2,3,x,u\n,5,6,x,u\n7,8,inf,y,v\n,,1,z,w\n3,2,1,y,v\n")
    columns = {"label_column": "k", "client_column": "s"}
    with pytest.raises(DataError, match=r"fill or drop such rows, or set data.on_error=skip\.$"):
        arrays(Manifest, path, **columns)
    found = arrays(Manifest, path, on_error="skip", **columns)
    assert found.samples.tolist() == [[1, 2, 3], [3, 2, 1]]
    assert [found.classes[label] for label in found.labels] == ["x", "y"]
    assert [found.owner_names[owner] for owner in found.owners] == ["u", "v"]
    assert found.skipped == (
        (f"{path}, line 3", "has no number in a"),
        (f"{path}, line 4", "has no number in c"),
        (f"{path}, line 5", "has no number in a, b"),
    )
    assert "3 of 5 rows have cells that are empty or not finite and are left out" in caplog.text
    path.write_text("a,b\n1,\n,2\n")
    with pytest.raises(DataError, match="each of its 2 rows has empty cells; fill some"):
        arrays(Manifest, path, on_error="skip")


@pytest.mark.parametrize(
    "head",
    [
        "path" + "," * 100_000,
        "a" * (1 << 20),
        "a;b" + ";" * 200_000,
        "a,\x0bb,\x0b" + "," * 100_000,  # splitlines takes it for three
    ],
)
def test_a_table_of_too_many_columns_is_refused_at_once(tmp_path, head):
    path = tmp_path / "x.csv"
    path.write_text(f"{head}\nx.png\n")
    with pytest.raises(DataError, match=r"its first line names more than 100,000 columns, or is"):
        arrays(Manifest, path)
    path.write_text(",".join(f"x{n}" for n in range(5000)) + "\n" + ",".join(["1"] * 5000) + "\n")
    assert dialect_of(path) == Dialect()


FRAME = pd.DataFrame({"x": [0.5, 1.5, 2.5], "y": [1.0, 2.0, 3.0]})


def write_parquet(frame, path):
    pq.write_table(pa.Table.from_pandas(frame.iloc[[2, 0, 1]], preserve_index=True), path)
    return frame.iloc[[2, 0, 1]]


@pytest.mark.parametrize("kind", ["csv", "excel", "parquet"])
def test_the_index_of_pandas_is_no_feature(tmp_path, kind, caplog):
    frame = FRAME.assign(when=pd.Timestamp("2024-01-01"), sure=[True, False, True])
    path, wanted = tmp_path / f"t.{'parquet' if kind == 'parquet' else 'csv'}", FRAME
    if kind == "csv":
        frame.to_csv(path)
    elif kind == "excel":
        frame.to_csv(path, sep=";", decimal=",", encoding="utf-8-sig", lineterminator="\r\n")
    else:
        write_parquet(frame, path)
        wanted = FRAME.iloc[[2, 0, 1]]
    with caplog.at_level(logging.WARNING):
        stream = open_samples(path, Fitting((2,), images=False, mode=None), 8)
        np.testing.assert_array_equal(next(stream.batches).samples, wanted.to_numpy(np.float32))
    assert "left out of the features" in caplog.text
    for column in ("when", "sure"):
        assert column in caplog.text


def test_a_path_that_is_no_utf8_is_told(tmp_path):
    from coterie.config.loading import load_component
    from coterie.errors import ConfigError

    with pytest.raises(ConfigError, match=r"it is not UTF-8; rename the file or folder, or give a"):
        load_component(ClassFolders.Config, {"path": f"{Path('/x')}/{LATIN}"})


def test_features_that_are_not_finite_are_found_when_data_is_checked(tmp_path):
    samples = np.array([[1, 2], [np.nan, 3], [4, np.inf], [5, 6]], np.float32)
    np.savez(tmp_path / "x.npz", samples=samples)
    report = check_data(NPZ(NPZ.Config(path=str(tmp_path / "x.npz"))), tmp_path / "out")
    assert report.halves["train"].samples == 2
    told = (tmp_path / "out" / "unreadable.csv").read_text()
    assert told.count("has NaN or infinite features") == 2
    assert "row 1," in told
