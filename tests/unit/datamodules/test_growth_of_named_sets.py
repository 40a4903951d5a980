"""Files of named data sets grow to a limit, and are refused in a sentence if they are strange."""

import bz2
import gzip
import struct

import numpy as np
import pytest
from scipy.io import savemat

from coterie.config import growth
from coterie.datamodules.mnist import MNIST
from coterie.datamodules.svhn import SVHN
from coterie.datamodules.usps import USPS
from coterie.errors import DataError

LINE = b"1 " + b" ".join(b"%d:0.5" % number for number in range(1, 257))


def refusal(cls, root):
    with pytest.raises(DataError) as caught:
        cls(cls.Config(root=str(root))).arrays()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def little(monkeypatch):
    monkeypatch.setattr(growth, "_FREE", 1 << 20)


@pytest.mark.parametrize("name", ["X", "y", "other"])
def test_svhn_grows_to_a_limit_also_by_what_is_not_wanted(tmp_path, name, little):
    content = {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": [1, 2]}
    content[name] = np.zeros(1 << 22, np.uint8)
    savemat(tmp_path / "train_32x32.mat", content, do_compression=True)
    assert "compressed bytes grow to" in refusal(SVHN, tmp_path)


def element(kind, content):
    return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)


def matrix(mat_class, lengths, values):
    """A variable X of any class, which claims lengths."""
    flags = element(6, struct.pack("<II", mat_class, 0))
    shape = element(5, struct.pack(f"<{len(lengths)}i", *lengths))
    return element(14, flags + shape + element(1, b"X") + element(2, values))


MATRICES = {
    "cells that it lacks": matrix(1, (1, 1 << 30), b""),
    "a struct that it lacks": matrix(2, (1 << 30, 1), b""),
    "numbers that it lacks": matrix(9, (1 << 15, 1 << 15), b"1"),
    "another element": element(5, b"1234"),
    "an element that ends early": element(14, b"12345678")[:-1],
    "an element of nothing": element(14, b""),
    "a compressed element of nothing": element(15, b""),
    "no flags": element(14, 4 * element(6, b"")),
    "numbers of no type": element(14, element(6, b"\x09") + 3 * element(77, b"1")),
}


@pytest.mark.parametrize("kind", MATRICES)
def test_strange_matlab_files_are_refused(tmp_path, kind):
    head = b"MATLAB 5.0 MAT-file".ljust(124) + b"\0\1IM"
    (tmp_path / "train_32x32.mat").write_bytes(head + MATRICES[kind])
    assert "train_32x32.mat cannot be read (" in refusal(SVHN, tmp_path)


LINES = {
    "values without end": b"1" + b" 1:0" * (1 << 19),
    "lines without end": b"\n" * (1 << 21),
    "one value too many": LINE + b" 257:0",
    "one too few": LINE.rpartition(b" ")[0],
    "a long value": LINE + b"0" * 99,
    "no number": LINE[:-1] + b"x",
    "a value beyond": LINE.replace(b"0.5", b"1.5"),
    "no value": LINE.replace(b"0.5", b"nan"),
    "a label beyond": b"1" + LINE[:1] + LINE[1:],
    "nothing": b"",
}


@pytest.mark.parametrize("kind", LINES)
def test_strange_lines_of_usps_are_refused(tmp_path, kind, little):
    for name in ("usps.bz2", "usps.t.bz2"):
        (tmp_path / name).write_bytes(bz2.compress(LINES[kind]))
    assert "usps.bz2 cannot be read (" in refusal(USPS, tmp_path)


def write_mnist(root, pack, suffix, shape):
    folder = root / "MNIST" / "raw"
    folder.mkdir(parents=True, exist_ok=True)
    for half in ("train", "t10k"):
        for kind, lengths in (("images-idx3", shape), ("labels-idx1", shape[:1])):
            head = bytes((0, 0, 8, len(lengths))) + struct.pack(f">{len(lengths)}I", *lengths)
            content = head + bytes(int(np.prod(lengths)))
            (folder / f"{half}-{kind}-ubyte{suffix}").write_bytes(pack(content))


def test_mnist_grows_to_a_limit(tmp_path, little):
    write_mnist(tmp_path, gzip.compress, ".gz", (3000, 28, 28))
    assert "compressed bytes grow to" in refusal(MNIST, tmp_path)


@pytest.mark.parametrize("shape", [(1,) * 255, (3, 0, 28), (3, 28, 0), (3, 28)])
def test_strange_shapes_of_mnist_are_refused(tmp_path, shape):
    write_mnist(tmp_path, bytes, "", shape)
    assert "idx3-ubyte" in refusal(MNIST, tmp_path)


@pytest.mark.parametrize(
    ("cls", "name"), [(MNIST, "MNIST/raw/train-images-idx3-ubyte"), (SVHN, "train_32x32.mat")]
)
def test_a_file_with_holes_is_not_read_into_memory(tmp_path, cls, name):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    for half in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        path.with_name(f"{half}-ubyte").touch()
    with path.open("wb") as file:
        file.truncate(1 << 40)
    assert "it has more than 2 GiB" in refusal(cls, tmp_path)
