"""Data of your own: folders of classes and of clients, manifests, arrays."""

import csv

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torchvision
from PIL import Image

from coterie.datamodules.folders import ClassFolders, ClientFolders, ImageFolder
from coterie.datamodules.manifest import Manifest
from coterie.datamodules.npz import NPZ
from coterie.datamodules.partition_configs import ByClient
from coterie.errors import DataError


def pixels(count, *shape):
    return np.random.default_rng(4).integers(0, 256, (count, *shape), np.uint8)


def write(path, image):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)
    return path


def write_all(folder, names, shape=(6, 5, 3)):
    images = pixels(len(names), *shape)
    for name, image in zip(names, images, strict=True):
        write(folder / name, image)
    return images.transpose(0, 3, 1, 2) if len(shape) == 3 else images[:, None]


def load(cls, path, **keys):
    return cls(cls.Config(path=str(path), **keys)).arrays()


def test_class_folders_are_what_torchvision_reads(tmp_path):
    names = ["pets/dog/z.png", "pets/cat/b.png", "pets/cat/a.png", "pets/dog/in/a.png"]
    images = write_all(tmp_path, [*names, "pets/.trash/x.png", "pets/cat/.a.png"])
    (tmp_path / "pets" / "loose.png").write_bytes((tmp_path / names[0]).read_bytes())
    data = load(ClassFolders, tmp_path / "pets")
    assert (data.name, data.classes, data.test_samples) == ("pets", ("cat", "dog"), None)
    assert data.labels.tolist() == [0, 0, 1, 1]
    np.testing.assert_array_equal(data.samples, images[[2, 1, 3, 0]])
    for hidden in ("pets/.trash/x.png", "pets/cat/.a.png"):
        (tmp_path / hidden).unlink()
    (tmp_path / "pets" / ".trash").rmdir()
    theirs = torchvision.datasets.ImageFolder(str(tmp_path / "pets"))
    assert tuple(theirs.classes) == data.classes
    pairs = {np.asarray(image).transpose(2, 0, 1).tobytes(): label for image, label in theirs}
    assert pairs == {
        image.tobytes(): label for image, label in zip(data.samples, data.labels, strict=True)
    }


def test_train_and_test_folders_are_halves(tmp_path):
    train = write_all(tmp_path / "train", ["a/1.png", "b/1.png", "c/1.png"])
    test = write_all(tmp_path / "test", ["b/1.png", "c/1.png"])
    data = load(ClassFolders, tmp_path)
    np.testing.assert_array_equal(data.samples, train)
    np.testing.assert_array_equal(data.test_samples, test)
    assert data.test_labels.tolist() == [1, 2]
    merged = load(ClassFolders, tmp_path, split="all")
    assert (merged.labels.tolist(), merged.classes) == ([0, 1, 2, 1, 2], ("a", "b", "c"))
    assert load(ClassFolders, tmp_path, split="test").labels.tolist() == [1, 2]


def test_some_class_folders_are_a_data_set(tmp_path):
    write_all(tmp_path / "train", ["a/1.png", "b/1.png", "c/1.png"])
    write_all(tmp_path / "test", ["b/1.png", "d/1.png"])
    data = load(ClassFolders, tmp_path, classes=("b", "c"))
    assert (data.classes, data.labels.tolist()) == (("b", "c"), [0, 1])
    assert data.test_labels.tolist() == [0]
    with pytest.raises(DataError, match=r"data.classes=\[d\]: there is no such folder in .*train"):
        load(ClassFolders, tmp_path, classes=("b", "d"))


def test_size_mode_and_limit(tmp_path):
    write_all(tmp_path, [f"{kind}/{n}.png" for kind in "ab" for n in range(4)])
    write(tmp_path / "b" / "large.png", pixels(1, 9, 12, 3)[0])
    data = load(ClassFolders, tmp_path, size=(4, 3), mode="L", limit=4)
    assert (data.samples.shape, data.labels.tolist()) == ((4, 1, 4, 3), [0, 0, 1, 1])


def test_an_image_folder_has_no_labels(tmp_path):
    images = write_all(tmp_path / "all", ["b.png", "a.png", "c/d.png"])
    data = load(ImageFolder, tmp_path / "all")
    np.testing.assert_array_equal(data.samples, images[[1, 0, 2]])
    assert (data.labels, data.classes, data.owners, data.name) == (None, (), None, "all")
    assert len(load(ImageFolder, tmp_path, limit=2).samples) == 2


@pytest.mark.parametrize("classes", [True, False])
def test_client_folders_with_and_without_classes(tmp_path, classes):
    inside = ["cat/1.png", "dog/2.png"] if classes else ["1.png", "2.png"]
    names = [f"{client}/{name}" for client in ("rome", "bonn") for name in inside]
    images = write_all(tmp_path, [*names, "bonn/dog/3.png" if classes else "bonn/3.png"])
    data = load(ClientFolders, tmp_path)
    np.testing.assert_array_equal(data.samples, images[[2, 3, 4, 0, 1]])
    assert (data.owner_names, data.owners.tolist()) == (("bonn", "rome"), [0, 0, 0, 1, 1])
    assert data.classes == (("cat", "dog") if classes else ())
    assert (data.labels is None) if not classes else data.labels.tolist() == [0, 1, 1, 0, 1]
    parts = ByClient().split(data, seed=0)
    assert [part.tolist() for part in parts] == [[0, 1, 2], [3, 4]]


def test_a_csv_lists_files_beside_it(tmp_path):
    images = write_all(tmp_path / "cards", ["a.png", "b.png", "far/c.png"])
    rows = [("kind", "file", "site"), ("NA", "a.png", "007"), ("", "far/c.png", "7")]
    with (tmp_path / "cards" / "list.csv").open("w", newline="") as file:
        csv.writer(file).writerows([*rows, ("b", str(tmp_path / "cards" / "b.png"), "007")])
    keys = {"picture_column": "file", "label_column": "kind", "client_column": "site"}
    data = load(Manifest, tmp_path / "cards" / "list.csv", **keys)
    np.testing.assert_array_equal(data.samples, images[[0, 2, 1]])
    assert (data.labels.tolist(), data.classes) == ([0, -1, 1], ("NA", "b"))
    assert (data.owners.tolist(), data.owner_names) == ([0, 1, 0], ("007", "7"))
    assert data.name == "list"
    bare = load(Manifest, tmp_path / "cards" / "list.csv", picture_column="file")
    assert bare.labels is bare.owners is None


def test_minus_one_is_unknown_as_text_too(tmp_path):
    write_all(tmp_path, ["a.png", "b.png", "c.png"])
    rows = ["path,kind,site", "a.png,cat,1", "b.png,-1,-1", "c.png,bat,2"]
    (tmp_path / "list.csv").write_text("\n".join(rows))
    data = load(Manifest, tmp_path / "list.csv", label_column="kind")
    assert (data.labels.tolist(), data.classes) == ([1, -1, 0], ("bat", "cat"))
    with pytest.raises(DataError, match=r"column site, names no client in row 1; give every"):
        load(Manifest, tmp_path / "list.csv", client_column="site")
    np.savez(tmp_path / "mine.npz", x=pixels(3, 6, 5), y=["cat", "-1", "bat"])
    assert load(NPZ, tmp_path / "mine.npz").labels.tolist() == [1, -1, 0]


@pytest.mark.parametrize("written", ["nan", "NaN", "<NA>"])
def test_a_missing_label_that_pandas_made_a_text_is_unknown(tmp_path, written):
    write_all(tmp_path, ["a.png", "b.png", "c.png"])
    rows = ["path,kind", "a.png,cat", f"b.png,{written}", "c.png,bat"]
    (tmp_path / "list.csv").write_text("\n".join(rows))
    data = load(Manifest, tmp_path / "list.csv", label_column="kind")
    assert (data.labels.tolist(), data.classes) == ([1, -1, 0], ("bat", "cat"))


@pytest.mark.parametrize("kind", [ClassFolders, ClientFolders])
def test_a_folder_called_minus_one_is_a_class(tmp_path, kind):
    write_all(tmp_path / "x", ["rome/-1/a.png", "rome/1/b.png"])
    path = tmp_path / "x" if kind is ClientFolders else tmp_path / "x" / "rome"
    data = load(kind, path)
    assert (data.labels.tolist(), data.classes) == ([0, 1], ("-1", "1"))


@pytest.mark.parametrize("form", ["path", "bytes", "struct"])
def test_a_parquet_manifest_holds_paths_or_bytes(tmp_path, form):
    images = write_all(tmp_path, ["1.png", "2.png", "3.png"])
    contents = [(tmp_path / f"{n}.png").read_bytes() for n in (1, 2, 3)]
    columns = {
        "path": ["1.png", "2.png", "3.png"],
        "bytes": contents,
        "struct": [{"bytes": content, "path": "elsewhere"} for content in contents],
    }
    table = pa.table({"image": columns[form], "label": [10, 9, None], "client": [5, 5, 40]})
    pq.write_table(table, tmp_path / "list.parquet")
    keys = {"picture_column": "image", "label_column": "label", "client_column": "client"}
    data = load(Manifest, tmp_path / "list.parquet", **keys)
    np.testing.assert_array_equal(data.samples, images)
    assert (data.labels.tolist(), data.classes) == ([1, 0, -1], ("9", "10"))
    assert (data.owners.tolist(), data.owner_names) == ([0, 0, 1], ("5", "40"))


@pytest.mark.parametrize(
    ("shape", "to"),
    [
        ((4, 6, 5), (4, 1, 6, 5)),
        ((4, 6, 5, 3), (4, 3, 6, 5)),
        ((4, 6, 5, 1), (4, 1, 6, 5)),
        ((4, 3, 6, 5), (4, 3, 6, 5)),
    ],
)
def test_npz_images(tmp_path, shape, to):
    images = pixels(*shape)
    np.savez(tmp_path / "mine.npz", x=images, y=np.array([7, -1, 3, 7]), clients=list("bbaa"))
    data = load(NPZ, tmp_path / "mine.npz")
    assert data.samples.shape == to
    wanted = images.transpose(0, 3, 1, 2) if shape[-1] in (1, 3) else images.reshape(to)
    np.testing.assert_array_equal(data.samples, wanted)
    assert (data.labels.tolist(), data.classes) == ([1, -1, 0, 1], ("3", "7"))
    assert (data.owners.tolist(), data.owner_names) == ([1, 1, 0, 0], ("a", "b"))
    assert data.samples.flags.c_contiguous
    small = load(NPZ, tmp_path / "mine.npz", size=4, limit=2)
    assert small.samples.shape == (2, to[1], 4, 4)


KERAS = {"x_train": 6, "y_train": 6, "x_test": 3, "y_test": 3}
MEDMNIST = {"train_images": 6, "val_images": 2, "test_images": 3}
MEDMNIST |= {"train_labels": 6, "val_labels": 2, "test_labels": 3}


@pytest.mark.parametrize(
    ("names", "test", "told"),
    [
        (KERAS, 3, "data.samples=x_train, data.labels=y_train, data.test_samples=x_test, data.te"),
        (MEDMNIST, 3, "the arrays val_images, val_labels are not used;"),
        ({"X": 6, "Y": 6}, None, "taken as data.samples=X, data.labels=Y."),
        ({"x": 6, "y": 6, "x_test": 3}, None, "the arrays x_test are not used;"),
        ({"samples": 6, "label": 6}, None, "taken as data.labels=label."),
    ],
)
def test_npz_of_usual_names(tmp_path, caplog, names, test, told):
    arrays = {
        name: np.arange(count)[:, None] % 3
        if name.lower()[0] == "y" or "label" in name
        else pixels(count, 4, 4)
        for name, count in names.items()
    }
    np.savez(tmp_path / "mine.npz", **arrays)
    data = load(NPZ, tmp_path / "mine.npz")
    assert told in caplog.text
    assert data.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert test is None or data.test_labels.tolist() == [0, 1, 2]
    assert (data.test_samples is None) == (test is None)


def test_the_only_array_is_of_samples_and_plain_names_need_no_word(tmp_path, caplog):
    np.savez(tmp_path / "one.npz", pixels(4, 5, 5))
    assert len(load(NPZ, tmp_path / "one.npz").samples) == 4
    assert "taken as data.samples=arr_0." in caplog.text
    caplog.clear()
    np.savez(tmp_path / "plain.npz", x=pixels(4, 5, 5), y=np.arange(4), clients=list("abab"))
    load(NPZ, tmp_path / "plain.npz")
    assert not caplog.text


def test_npz_vectors_and_named_arrays(tmp_path):
    names = np.array(["low", "high", "low"])
    arrays = {"train_images": np.eye(3), "train_labels": names[:, None]}
    tests = {"val": np.ones((1, 3), np.int16), "val_y": np.array([b"low"])}
    np.savez_compressed(tmp_path / "mine.npz", **arrays, **tests)
    keys = {"samples": "train_images", "labels": "train_labels"}
    data = load(NPZ, tmp_path / "mine.npz", **keys, test_samples="val", test_labels="val_y")
    np.testing.assert_array_equal(data.samples, np.eye(3, dtype=np.float32))
    assert (data.samples.dtype, data.test_samples.dtype) == (np.float32, np.float32)
    assert (data.labels.tolist(), data.test_labels.tolist()) == ([1, 0, 1], [1])
    assert (data.classes, data.shape) == (("high", "low"), (3,))
    assert load(NPZ, tmp_path / "mine.npz", samples="val").labels is None
