"""CIFAR-100, STL-10, SVHN and EMNIST from tiny files in their official formats."""

import hashlib
import pickle
import struct
from contextlib import suppress

import numpy as np
import pytest
import torchvision
from scipy.io import savemat

from coterie.datamodules.cifar100 import CIFAR100
from coterie.datamodules.emnist import CLASSES, EMNIST
from coterie.datamodules.partition_configs import ClassBlocks
from coterie.datamodules.stl10 import STL10
from coterie.datamodules.svhn import SVHN
from coterie.errors import DataError


def pixels(count, *shape):
    return np.random.default_rng(6).integers(0, 256, (count, *shape), np.uint8)


def load(cls, root, **keys):
    return cls(cls.Config(root=str(root), **keys)).arrays()


def refusal(cls, root, **keys):
    with pytest.raises(DataError) as caught:
        load(cls, root, **keys)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(str(root), "ROOT")


@pytest.fixture
def cifar100_root(tmp_path, monkeypatch):
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    images = pixels(5, 3, 32, 32)
    labels = {"fine_labels": [7, 0, 99, 7, 1], "coarse_labels": [3, 0, 19, 3, 1]}
    names = {"fine_label_names": [f"f{k}" for k in range(100)]}
    names["coarse_label_names"] = [f"c{k}" for k in range(20)]
    files = {"meta": names}
    for half, rows in (("train", slice(0, 3)), ("test", slice(3, 5))):
        kinds = {kind: values[rows] for kind, values in labels.items()}
        files[half] = {"data": images[rows].reshape(-1, 3072), **kinds}
    sums = {}
    for name, content in files.items():
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
        sums[name] = hashlib.md5((folder / name).read_bytes()).hexdigest()
    theirs = torchvision.datasets.CIFAR100
    monkeypatch.setattr(theirs, "train_list", [["train", sums["train"]]])
    monkeypatch.setattr(theirs, "test_list", [["test", sums["test"]]])
    monkeypatch.setattr(theirs, "meta", {**theirs.meta, "md5": sums["meta"]})
    return tmp_path, images


def test_cifar100_with_fine_and_coarse_labels(cifar100_root):
    root, images = cifar100_root
    data = load(CIFAR100, root)
    np.testing.assert_array_equal(data.samples, images[:3])
    np.testing.assert_array_equal(data.test_samples, images[3:])
    assert (data.labels.tolist(), data.test_labels.tolist()) == ([7, 0, 99], [7, 1])
    assert (data.name, data.classes[99], len(data.classes)) == ("cifar100", "f99", 100)
    coarse = load(CIFAR100, root, labels="coarse", split="all")
    assert coarse.labels.tolist() == [3, 0, 19, 3, 1]
    assert (coarse.name, coarse.classes[19], len(coarse.classes)) == ("cifar20", "c19", 20)


def test_a_changed_pickle_is_not_opened(cifar100_root):
    path = cifar100_root[0] / "cifar-100-python" / "train"
    path.write_bytes(path.read_bytes() + b".")
    assert refusal(CIFAR100, cifar100_root[0]) == (
        "ROOT/cifar-100-python is incomplete or corrupt; fetch cifar-100-python.tar.gz again and "
        "unpack it in ROOT."
    )


class Stranger:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("name", ["train", "test", "meta"])
def test_a_pickle_that_is_changed_once_it_is_checked_is_not_opened(
    cifar100_root, monkeypatch, name
):
    root = cifar100_root[0]
    check, path = torchvision.datasets.cifar.check_integrity, root / "cifar-100-python" / name

    def checked(file, md5=None):
        found = check(file, md5)
        if str(file) == str(path):
            path.write_bytes(pickle.dumps(Stranger(root / "made"), protocol=2))
        return found

    monkeypatch.setattr(torchvision.datasets.cifar, "check_integrity", checked)
    monkeypatch.setattr(hashlib, "md5", changing(path, root / "made"))
    with suppress(DataError):  # the names of classes are read for each half
        load(CIFAR100, root, split="all")
    assert not (root / "made").exists()


def changing(path, made):
    """MD5 as it is, after which the file is a stranger's."""
    md5 = hashlib.md5

    def changed(*given, **more):
        found, expected = md5(*given, **more), given and given[0] == path.read_bytes()
        if expected:
            path.write_bytes(pickle.dumps(Stranger(made), protocol=2))
        return found

    return changed


@pytest.fixture
def stl10_root(tmp_path):
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    images = pixels(7, 3, 96, 96)
    for name, rows in (("train", [0, 1]), ("test", [2, 3, 4]), ("unlabeled", [5, 6])):
        images[rows].transpose(0, 1, 3, 2).tofile(folder / f"{name}_X.bin")
    np.array([10, 1], np.uint8).tofile(folder / "train_y.bin")
    np.array([2, 3, 4], np.uint8).tofile(folder / "test_y.bin")
    return tmp_path, images


def test_stl10_with_and_without_its_unlabelled_images(stl10_root, monkeypatch):
    root, images = stl10_root
    data = load(STL10, root)
    np.testing.assert_array_equal(data.samples, images[:2])
    np.testing.assert_array_equal(data.test_samples, images[2:5])
    assert (data.labels.tolist(), data.test_labels.tolist()) == ([9, 0], [1, 2, 3])
    every = load(STL10, root, split="all", unlabelled=True)
    np.testing.assert_array_equal(every.samples, images)
    assert every.labels.tolist() == [9, 0, 1, 2, 3, -1, -1]
    train = load(STL10, root, unlabelled=True)
    assert (train.labels.tolist(), len(train.test_samples)) == ([9, 0, -1, -1], 3)
    np.testing.assert_array_equal(train.samples, images[[0, 1, 5, 6]])
    with pytest.raises(DataError, match="every sample's label, but 2 of 7 are unknown; leave"):
        ClassBlocks(clients=1).split(every, 0)
    monkeypatch.setattr(torchvision.datasets.STL10, "_check_integrity", lambda self: True)
    monkeypatch.setattr(torchvision.datasets.STL10, "_STL10__load_folds", lambda self, folds: None)
    theirs = torchvision.datasets.STL10(str(root), "train")
    np.testing.assert_array_equal(theirs.data, data.samples)
    np.testing.assert_array_equal(theirs.labels, data.labels)


def test_stl10_files_that_do_not_fit(stl10_root):
    root, folder = stl10_root[0], stl10_root[0] / "stl10_binary"
    np.array([1, 11], np.uint8).tofile(folder / "train_y.bin")
    assert "train_y.bin holds 2 labels for 2 images, or labels beyond 1..10; fetch" in refusal(
        STL10, root
    )
    (folder / "train_X.bin").write_bytes(bytes(100))
    assert "train_X.bin holds 100 bytes, which is not a whole number" in refusal(STL10, root)


def test_svhn_counts_its_digits_from_one(tmp_path):
    images = pixels(5, 3, 32, 32)
    for half, rows, labels in (("train", slice(0, 3), [10, 1, 9]), ("test", slice(3, 5), [2, 10])):
        content = {
            "X": images[rows].transpose(2, 3, 1, 0),
            "y": np.array(labels, np.uint8)[:, None],
        }
        savemat(tmp_path / f"{half}_32x32.mat", content, do_compression=True)
    data = load(SVHN, tmp_path)
    np.testing.assert_array_equal(data.samples, images[:3])
    np.testing.assert_array_equal(data.test_samples, images[3:])
    assert (data.labels.tolist(), data.test_labels.tolist()) == ([0, 1, 9], [2, 0])
    path = tmp_path / "train_32x32.mat"
    savemat(path, {"X": images[:3], "y": [1, 2, 3]})
    assert "holds uint8 images of shape (3, 3, 32, 32) and 3 labels; fetch" in refusal(
        SVHN, tmp_path
    )
    savemat(path, {"X": images[:1].transpose(2, 3, 1, 0), "y": [11]})
    assert "holds labels beyond 1..10; fetch it again." in refusal(SVHN, tmp_path)
    savemat(path, {"X": images})
    assert "train_32x32.mat cannot be read ('y'); fetch it again." in refusal(SVHN, tmp_path)
    version_7_3 = b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(512)
    for content in (b"", b"junk" * 100, version_7_3):
        path.write_bytes(content)
        assert "train_32x32.mat cannot be read (" in refusal(SVHN, tmp_path)


def write_idx(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(header + np.ascontiguousarray(array).tobytes())


@pytest.mark.parametrize(("variant", "first"), [("balanced", 0), ("letters", 1)])
def test_emnist_stands_upright(tmp_path, variant, first):
    images = pixels(4, 28, 28)
    count = len(CLASSES[variant])
    for half, rows in (("train", slice(0, 3)), ("test", slice(3, 4))):
        stem = tmp_path / "EMNIST" / "raw" / f"emnist-{variant}-{half}"
        labels = np.array([0, count - 1, 1, 2], np.uint8)[rows] + np.uint8(first)
        write_idx(stem.with_name(f"{stem.name}-images-idx3-ubyte"), images[rows].transpose(0, 2, 1))
        write_idx(stem.with_name(f"{stem.name}-labels-idx1-ubyte"), labels)
    data = load(EMNIST, tmp_path, variant=variant)
    np.testing.assert_array_equal(data.samples[:, 0], images[:3])
    assert (data.labels.tolist(), data.test_labels.tolist()) == ([0, count - 1, 1], [2])
    assert data.name == f"emnist_{variant}"
    theirs = torchvision.datasets.EMNIST(str(tmp_path), variant, train=True)
    assert data.classes == tuple(theirs.classes)[first:]
    write_idx(
        tmp_path / "EMNIST" / "raw" / f"emnist-{variant}-test-labels-idx1-ubyte",
        np.array([count + first], np.uint8),
    )
    assert f"holds the label {count + first}, but emnist_{variant} has {count} classes" in refusal(
        EMNIST, tmp_path, variant=variant
    )


def test_emnist_classes_are_torchvisions():
    for variant, names in CLASSES.items():
        theirs = tuple(torchvision.datasets.EMNIST.classes_split_dict[variant])
        assert names == (theirs[1:] if variant == "letters" else theirs)


def test_a_class_that_extends_one_is_fetched_as_that_one(tmp_path, monkeypatch):
    class Own(CIFAR100):
        pass

    fetched = []
    monkeypatch.setattr(torchvision.datasets, "CIFAR100", lambda **given: fetched.append(given))
    Own(Own.Config(root=str(tmp_path))).fetch(tmp_path)
    assert fetched == [{"root": str(tmp_path), "download": True}]


@pytest.mark.parametrize(
    ("cls", "parts"),
    [
        (CIFAR100, ["cifar100: no cifar-100-python/ in ROOT; unpack cifar-100-python.tar.gz"]),
        (STL10, ["stl10: no train_X.bin in ROOT/stl10_binary; unpack stl10_binary.tar.gz"]),
        (SVHN, ["svhn: no train_32x32.mat in ROOT; put it there"]),
        (EMNIST, ["emnist_balanced: no emnist-balanced-train-images-idx3-ubyte or ", "raw; set"]),
    ],
)
def test_missing_files_say_what_where_and_how(cls, parts, tmp_path, monkeypatch):
    sentence = refusal(cls, tmp_path)
    for part in (*parts, "set data.root or COTERIE_DATA", "or set data.download=true."):
        assert part in sentence

    def no_network(*args, **kwargs):
        raise RuntimeError("Error downloading x:\nno route to host")

    theirs = getattr(torchvision.datasets, cls.__name__)
    monkeypatch.setattr(theirs, "download", no_network)
    sentence = refusal(cls, tmp_path, download=True)
    assert "download=true, but fetching the files into ROOT failed (no route to host)" in sentence
