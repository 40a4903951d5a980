"""Rows of arrays in files, also of files that are cut short meanwhile."""

import os
import zipfile

import numpy as np
import pytest

from coterie.datamodules.npz import NPZ
from coterie.datamodules.stored_rows import StoredRows
from coterie.errors import DataError


@pytest.fixture
def stored(tmp_path):
    array = np.random.default_rng(0).integers(0, 255, (50, 3, 4), dtype=np.int16)
    np.save(tmp_path / "x.npy", array)
    start = (tmp_path / "x.npy").stat().st_size - array.nbytes
    return array, StoredRows(tmp_path / "x.npy", start, array.shape, array.dtype)


@pytest.mark.parametrize(
    "rows",
    [
        3,
        -1,
        slice(None),
        slice(4, 9),
        slice(0, 0),
        np.array([7, 2, 3, 4, 2, 49]),
        np.array([], int),
    ],
    ids=str,
)
def test_rows_are_those_of_the_array(stored, rows):
    array, found = stored
    np.testing.assert_array_equal(found[rows], array[rows])
    assert found[rows].dtype == array.dtype
    assert (len(found), found.ndim, found.size) == (50, 3, 600)
    np.testing.assert_array_equal(np.asarray(found), array)


def test_a_row_that_is_not_there_is_an_index_error(stored):
    with pytest.raises(IndexError):
        stored[1][50]


@pytest.mark.parametrize("name", ["x.npy", "x.npz"])
def test_a_file_that_is_cut_short_while_it_is_read_is_told(tmp_path, name):
    """A mapped one would end the process."""
    images = np.zeros((400, 64, 64), np.uint8)
    np.save(tmp_path / name, images) if name == "x.npy" else np.savez(tmp_path / name, x=images)
    source = NPZ(NPZ.Config(path=str(tmp_path / name))).open_half("train")
    os.truncate(tmp_path / name, 100_000)
    with pytest.raises(DataError, match="was cut short while it was read; put it back"):
        source.read(np.arange(400))


@pytest.mark.parametrize("shape", [(-1, 4), (True, True), (1,) * 33, (2, -1), (0, -3)], ids=str)
def test_a_shape_that_no_array_has_is_refused(tmp_path, shape):
    header = repr({"descr": "<f4", "fortran_order": False, "shape": shape}).encode().ljust(400)
    content = b"\x93NUMPY\2\0" + len(header).to_bytes(4, "little") + header + bytes(64)
    (tmp_path / "x.npy").write_bytes(content)
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", content)
    for name in ("x.npy", "x.npz"):
        with pytest.raises(DataError, match=r"its shape is \(.*which no array has"):
            NPZ(NPZ.Config(path=str(tmp_path / name))).open_half("train")


def test_columns_first_are_read_whole(tmp_path):
    array = np.asfortranarray(np.random.default_rng(0).random((6, 5)))
    np.save(tmp_path / "x.npy", array)
    found = NPZ(NPZ.Config(path=str(tmp_path / "x.npy"))).arrays().samples
    np.testing.assert_array_equal(found, array.astype(np.float32))
