"""Data files with any content are read or refused in one sentence, without filling the memory."""

import gzip
import io
import struct
import zipfile
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from coterie.datamodules.decoding import PixelFormat, UnreadablePictureError, decode
from coterie.datamodules.idx import read_idx
from coterie.datamodules.manifest import Manifest
from coterie.datamodules.npz import NPZ
from coterie.datamodules.picture_search import PictureSearch
from coterie.errors import DataError

SHORT = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def saved(save, **arrays):
    content = io.BytesIO()
    save(content, **arrays)
    return content.getvalue()


ARRAYS = {"samples": np.arange(192, dtype=np.uint8).reshape(3, 8, 8), "labels": np.arange(3)}
TABLE = pa.table({"samples": pa.array([[0.0, 1.0]] * 4), "labels": pa.array(["a", "b", "a", "b"])})


def picture(kind):
    content = io.BytesIO()
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(content, kind)
    return content.getvalue()


def parquet():
    content = io.BytesIO()
    pq.write_table(TABLE, content)
    return content.getvalue()


FILES = {
    "x.npz": saved(np.savez, **ARRAYS),
    "y.npz": saved(np.savez_compressed, **ARRAYS),
    "x.npy": saved(np.save, arr=ARRAYS["samples"]),
    "x.parquet": parquet(),
    "x-ubyte": b"\0\0\x08\x01" + struct.pack(">I", 3) + b"abc",
    "x-ubyte.gz": gzip.compress(b"\0\0\x08\x01" + struct.pack(">I", 3) + b"abc"),
    "x.png": picture("PNG"),
    "x.jpg": picture("JPEG"),
    "x.tif": picture("TIFF"),
    "x.bmp": picture("BMP"),
}


def read(path):
    if path.suffix in (".npz", ".npy"):
        return NPZ(NPZ.Config(path=str(path))).arrays()
    if path.suffix == ".parquet":
        config = Manifest.Config(path=str(path), picture_column="samples", label_column="labels")
        return Manifest(config).arrays()
    if path.name.startswith("x-ubyte"):
        return read_idx(path)
    return decode(path, path.name, PixelFormat(mode="L"))


@pytest.mark.parametrize("name", FILES)
def test_the_whole_file_is_read(tmp_path, name):
    (tmp_path / name).write_bytes(FILES[name])
    read(tmp_path / name)


@pytest.mark.parametrize("name", FILES)
@SHORT
@given(
    places=st.lists(st.tuples(st.integers(0, 10**6), st.binary(max_size=6)), max_size=3),
    end=st.integers(0, 10**6) | st.none(),
)
def test_any_change_of_a_file(tmp_path, name, places, end):
    content = bytearray(FILES[name])
    for place, change in places:
        start = place % len(content)
        content[start : start + len(change)] = change
    path = tmp_path / name
    path.write_bytes(bytes(content[:end]))
    try:
        read(path)
    except DataError as error:
        refused = str(error)
    else:
        return
    assert "\n" not in refused


def test_a_png_of_65535_squared_pixels(tmp_path):
    def chunk(kind, body):
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = struct.pack(">IIBBBBB", 65535, 65535, 8, 2, 0, 0, 0)
    content = (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 99))
    )
    with pytest.raises(UnreadablePictureError, match="has 4,295 million pixels; make it smaller"):
        decode(content, "x.png", PixelFormat())


def test_zip_and_gzip_bombs(tmp_path):
    zeros = bytes(1 << 20)
    packer = zlib.compressobj(1, wbits=31)
    with (tmp_path / "x-ubyte.gz").open("wb") as file:
        file.write(packer.compress(b"\0\0\x08\x01" + struct.pack(">I", (260 << 20) - 8)))
        for _ in range(260):
            file.write(packer.compress(zeros))
        file.write(packer.flush())
    with pytest.raises(DataError, match="compressed bytes grow to"):
        read(tmp_path / "x-ubyte.gz")
    with (
        zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("samples.npy", "w") as member,
    ):
        np.lib.format.write_array_header_1_0(
            member, {"descr": "|u1", "fortran_order": False, "shape": (260 << 20, 1, 1)}
        )
        for _ in range(260):
            member.write(zeros)
    with pytest.raises(DataError, match="compressed bytes grow to"):
        read(tmp_path / "x.npz")


def test_a_header_of_more_values_than_the_file_has(tmp_path):
    with (
        zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("samples.npy", "w") as member,
    ):
        np.lib.format.write_array_header_1_0(
            member, {"descr": "|u1", "fortran_order": False, "shape": (10**6, 10**5, 10**4)}
        )
    with pytest.raises(DataError, match="cut short"):
        read(tmp_path / "x.npz")


@pytest.mark.parametrize("folder", ["/proc", "/sys"])
def test_folders_of_the_system_are_no_pictures(tmp_path, folder):
    (tmp_path / "link").symlink_to(folder)
    for path in (tmp_path, tmp_path / "link"):
        with pytest.raises(DataError, match="a folder of the system"):
            PictureSearch().find(path)


def test_a_loop_of_links_ends(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "up").symlink_to("..")
    (tmp_path / "a" / "itself").symlink_to("itself")
    Image.new("L", (4, 4)).save(tmp_path / "a" / "x.png")
    assert len(PictureSearch().find(tmp_path)) == 1
