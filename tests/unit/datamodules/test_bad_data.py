"""Bad data is refused in one sentence: what, which value, what to do."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from coterie.contract.data import DataArrays
from coterie.contract.data_checks import check_data
from coterie.datamodules.folders import ClassFolders, ClientFolders, ImageFolder
from coterie.datamodules.manifest import Manifest
from coterie.datamodules.npz import NPZ
from coterie.datamodules.partition_configs import IID, ByClient
from coterie.errors import DataError
from coterie.jobs.train import main


def write(path, level=0, size=(4, 4)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full(size, level, np.uint8)).save(path)


def refusal(cls, path, **keys):
    with pytest.raises(DataError) as caught:
        cls(cls.Config(path=str(path), **keys)).arrays()
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.endswith(".")
    return sentence.replace(str(path), "PATH")


def test_folders_of_the_wrong_form(tmp_path):
    assert refusal(ClassFolders, tmp_path / "gone") == (
        "PATH: there is no such folder; set data.path to one with classes."
    )
    write(tmp_path / "loose.png")
    assert refusal(ClassFolders, tmp_path) == (
        "PATH: there are no folders of classes in it; make one for each, or choose "
        "data=image_folder for pictures without classes."
    )
    write(tmp_path / "cat" / "1.png")
    (tmp_path / "dog").mkdir()
    assert refusal(ClassFolders, tmp_path).startswith("PATH/dog: there are no pictures (.jpg, ")
    assert refusal(ImageFolder, tmp_path / "dog").endswith(
        "put some there, or take the folder out."
    )
    assert refusal(ClassFolders, tmp_path, split="test") == (
        f"data.split=test: {tmp_path.name} has no test set; use split=all."
    )


def test_a_test_class_without_training_pictures(tmp_path):
    for name in ("train/cat", "test/cat", "test/dog"):
        write(tmp_path / name / "1.png")
    assert refusal(ClassFolders, tmp_path) == (
        "PATH/test/dog: there is no such class in PATH/train; take it out."
    )


def test_client_folders_with_and_without_classes_mixed(tmp_path):
    write(tmp_path / "bonn" / "cat" / "1.png")
    write(tmp_path / "rome" / "2.png")
    assert refusal(ClientFolders, tmp_path) == (
        "PATH/rome/2.png lies in no class folder, but PATH/bonn/cat/1.png does; put all pictures "
        "in class folders, or none."
    )


def test_bad_pictures_in_folders(tmp_path):
    write(tmp_path / "a" / "1.png")
    large = tmp_path / "large.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40), np.uint8)).save(large)
    (tmp_path / "a" / "2.png").write_bytes(large.read_bytes()[:800])
    assert refusal(ClassFolders, tmp_path).startswith("PATH/a/2.png is a picture that cannot be")
    (tmp_path / "a" / "2.png").write_bytes(b"")
    assert "a/2.png is empty (0 bytes); fetch it again" in refusal(ClassFolders, tmp_path)
    write(tmp_path / "a" / "2.png", size=(5, 4))
    assert refusal(ClassFolders, tmp_path) == (
        "PATH/a/1.png has 4×4 pixels, but PATH/a/2.png has 5×4; set data.size to resize all "
        "pictures to one size."
    )


def test_bad_manifests(tmp_path):
    path = tmp_path / "list.csv"
    assert refusal(Manifest, path) == (
        "data.path=PATH: there is no such file; give a .csv or .parquet."
    )
    path.write_text("file,kind\ngone.png,a\n")
    assert refusal(Manifest, path) == (
        "data.picture_column=path: PATH has the columns file, kind; name one of them."
    )
    assert "data.label_column=label: " in refusal(
        Manifest, path, picture_column="file", label_column="label"
    )
    sentence = refusal(Manifest, path, picture_column="file")
    assert sentence == (
        f"{tmp_path}/gone.png: there is no such file; put it there, or take its entry out."
    )
    for text, expected in (
        ("file,n\n,1\n", "PATH, column file, names no picture in row 0; give one."),
        ("file,n\n", "data.path=PATH: it has no rows; add some."),
        ("file,n\na,1.5\n", "PATH, column n, holds 1.5, a fraction; give classes as"),
        ("file,n\na,1\nb,-2\n", "PATH, column n, holds -2; labels count from 0, and -1 stands"),
        ("file,n\na\n", "data.path=PATH: it cannot be read (a line has 1 columns"),
    ):
        path.write_text(text)
        assert refusal(Manifest, path, picture_column="file", label_column="n").startswith(expected)
    path.write_text("file,site\na,\nb,x\n")
    assert refusal(Manifest, path, picture_column="file", client_column="site") == (
        "PATH, column site, names no client in row 0; give every sample one."
    )
    other = tmp_path / "list.parquet"
    pq.write_table(pa.table({"path": [1, 2], "bytes": [b"", b"junk"]}), other)
    assert (
        refusal(Manifest, other)
        == "PATH, column path, is of type int64; give paths, bytes or lists of numbers."
    )
    assert refusal(Manifest, other, picture_column="bytes") == (
        "2 of 2 pictures cannot be read (row 0 of PATH is empty (0 bytes); row 1 of PATH is not "
        "a readable picture); repair them or take them out (coterie check_data "
        "lists all)."  # none is left to go on with
    )
    other.write_bytes(b"PAR1")
    assert refusal(Manifest, other).startswith("data.path=PATH: it cannot be read (")


def test_bad_npz_files(tmp_path):
    path = tmp_path / "x.npz"
    with path.open("wb") as file:
        np.save(file, np.zeros((3, 4)))
    assert refusal(NPZ, path) == "data.path=PATH: it holds one array; rename it to .npy."
    path.unlink()
    assert refusal(NPZ, path) == "data.path=PATH: there is no such file; give an .npz file."
    images = np.zeros((3, 4, 4), np.uint8)
    cases = [
        ({"a": images, "b": images}, {}, "it has no array samples or x, but the arrays a, b; name"),
        ({"x": images}, {"samples": "y"}, "data.samples=y: PATH has the arrays x; name one."),
        ({"x": images[0, 0]}, {}, "PATH, array x, has type uint8 and shape (4,); save images as"),
        (
            {"x": images - 9.0},
            {},
            "PATH, array x, is of decimal numbers in -9..-9; set data.",
        ),
        ({"x": np.zeros((3, 2, 4, 2), np.uint8)}, {}, "shape (3, 2, 4, 2); save images as uint8"),
        ({"x": images, "y": [0, 1]}, {}, "PATH, array y, has 2 entries for 3 samples; give one"),
        ({"x": images, "y": [0.5, 1, 2]}, {}, "array y, holds 0.5, a fraction; give classes as"),
        ({"x": images, "y": [0, 1, -7]}, {}, "array y, holds -7; labels count from 0"),
        ({"x": images, "y": images}, {}, "array y, has shape (3, 4, 4); give a whole number or a"),
        ({"x": images, "clients": [0, 1, -1]}, {}, "array clients, names no client in row 2; give"),
        ({"x": np.zeros((2, 3))}, {"size": 4}, "data.size: x holds feature vectors; leave it out."),
        (
            {"x": images, "y": np.array([0, "a", None], object)},
            {},
            "array y, holds Python objects, which are not read because they can run code; save",
        ),
        (
            {"x": images, "y": ["a", "b", "a"], "v": images, "w": ["c", "a", "a"]},
            {"test_samples": "v", "test_labels": "w"},
            "PATH, array w, holds c, which no training sample has; take it out.",
        ),
    ]
    for arrays, keys, expected in cases:
        np.savez(path, **arrays)
        assert expected in refusal(NPZ, path, **keys), expected
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"junk"):
        path.write_bytes(content)
        told = refusal(NPZ, path)
        assert told.startswith("data.path=PATH: it cannot be read (")
        assert "pickle" not in told  # NumPy's advice for a file of another kind
    damaged = bytearray(whole)
    damaged[200:260] = bytes(60)
    path.write_bytes(bytes(damaged))
    assert "PATH" in refusal(NPZ, path)


VECTORS = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"samples": VECTORS[:0]}, "data=d: it has no samples (shape (0, 2)); add some."),
        (
            {"samples": VECTORS.astype(np.float64)},
            "its samples are float64 of shape (6, 2)",
        ),
        (
            {"samples": VECTORS[:, None, None]},
            "are float32 of shape (6, 1, 1, 2); give",
        ),
        (
            {"samples": np.where(np.arange(6)[:, None] > 3, np.nan, VECTORS)},
            "data=d: 2 of 6 samples have NaN or infinite features, the first in row 4; take them "
            "out or fill them in.",
        ),
        (
            {"samples": np.ones((6, 2), np.float32)},
            "data=d: all 6 samples are the same, so there is nothing to learn or to cluster; check "
            "how they were made.",
        ),
        ({"labels": np.arange(5)}, "data=d: labels have shape (5,) for 6 samples; give one each."),
        (
            {"labels": np.array([0, 1, -2, 0, 0, 0])},
            "data=d: labels hold -2 in row 2, but have to be in -1..1; number them from 0.",
        ),
        ({"labels": np.full(6, 2)}, "data=d: labels hold 2 in row 0, but have to be in -1..1;"),
        ({"owners": np.full(6, -1)}, "data=d: owners hold -1 in row 0, but have to be in 0..1;"),
        ({"test_samples": VECTORS[:, :1]}, "data=d, test set: its samples have shape (1,), the"),
        (
            {"test_samples": VECTORS, "test_labels": np.full(6, 2)},
            "data=d, test set: labels hold 2 in row 0",
        ),
    ],
)
def test_arrays_that_cannot_be_learned_from(keys, sentence):
    usual = {"samples": VECTORS, "classes": ("a", "b"), "owner_names": ("c", "d")}
    check_data(DataArrays(name="d", **usual, labels=np.array([0, 1, -1, 0, 0, 0])))
    if "samples" in keys and np.isnan(keys["samples"]).any():
        keys = {"samples": keys["samples"].astype(np.float32)}
    with pytest.raises(DataError) as caught:
        check_data(DataArrays(name="d", **{**usual, **keys}))
    assert sentence in str(caught.value)


def test_clients_without_enough_samples():
    data = DataArrays(
        name="d", samples=VECTORS, owners=np.array([0, 0, 0, 2, 2, 3]), owner_names=tuple("abcd")
    )
    with pytest.raises(DataError, match="client b has no sample; take it out"):
        ByClient().split(data, 0)
    few = DataArrays(
        name="d", samples=VECTORS, owners=np.array([0, 0, 0, 0, 0, 1]), owner_names=("a", "b")
    )
    assert [len(part) for part in ByClient().split(few, 0)] == [5, 1]
    with pytest.raises(DataError, match="data=d does not say whose samples are whose; choose"):
        ByClient().split(DataArrays(name="d", samples=VECTORS), 0)
    with pytest.raises(DataError, match="clients=7 is more than the 6 samples; lower it"):
        IID(clients=7).split(data, 0)


SHORT = ("experiment=fedcc_digits", "cluster=serial", "encoder=mlp", "tracking.progress=none")


@pytest.mark.parametrize(
    ("arrays", "override", "sentence"),
    [
        ({}, "seed=0", "there is no such file"),
        ({"x": np.ones((9, 3))}, "seed=0", "all 9 samples are the same, so there is nothing"),
        ({"x": np.eye(9)}, "partition=class_blocks", "ClassBlocks needs labels, which the data"),
        ({"x": np.eye(10)}, "augmentation=noise", "method.clusters=null: the data has no classes;"),
        ({"x": np.eye(9)}, "partition=by_client", "data=mine does not say whose samples are whose"),
        ({"x": np.eye(9), "y": [-1] + [0] * 8}, "partition=class_blocks", "but 1 of 9 are unknown"),
    ],
)
def test_the_command_exits_with_2(arrays, override, sentence, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if arrays:
        np.savez(tmp_path / "mine.npz", **arrays)
    path = f"data.path={tmp_path / 'mine.npz'}"
    assert main([*SHORT, "data=npz", path, override, "method.clusters=null"]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.parquet"])
def test_a_table_given_as_arrays_is_told_its_reader(tmp_path, name):
    (tmp_path / name).write_text("a,b\n1,2\n")
    told = refusal(NPZ, tmp_path / name)
    assert told == "data.path=PATH: a table is read by data=manifest; choose that."
