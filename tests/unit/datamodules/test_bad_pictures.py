"""Pictures that cannot be read: all are named at once, or left out and listed."""

import io
import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from coterie.datamodules.checking import check_data
from coterie.datamodules.decoding_memory import Room
from coterie.datamodules.folders import ClassFolders, ClientFolders, ImageFolder
from coterie.datamodules.manifest import Manifest
from coterie.datamodules.many_channels import is_tiff, read_tiff
from coterie.datamodules.picture_files import open_picture
from coterie.errors import DataError

BAD = {"a/03.png": b"", "a/07.png": b"no picture", "b/04.png": None}
"""Files in the folders and their content; None is a link to nowhere."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Thirty pictures of two classes, the same without those of `BAD`, and lists of both."""
    root, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for number in range(30):
        name = f"{'ab'[number % 2]}/{number // 2:02}.png"
        pixels = rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)
        for folder in ("spoilt", "whole"):
            path = root / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if folder == "whole" and name in BAD:
                continue
            if name in BAD:
                if BAD[name] is None:
                    path.symlink_to(root / "nowhere.png")
                else:
                    path.write_bytes(BAD[name])
                continue
            Image.fromarray(pixels).save(path)
    names = [f"{kind}/{number:02}.png" for kind in "ab" for number in range(15)]
    for folder in ("spoilt", "whole"):
        kept = [name for name in names if folder == "spoilt" or name not in BAD]
        rows = "".join(f"{name},{name[0]},{name[0]}\n" for name in kept)
        (root / folder / "list.csv").write_text(f"path,kind,site\n{rows}")
    return root


def arrays(cls, path, **keys):
    return cls(cls.Config(path=str(path), **keys)).arrays()


SETS = {
    "classes": (ClassFolders, "", {}),
    "clients": (ClientFolders, "", {}),
    "one folder": (ImageFolder, "", {}),
    "manifest": (Manifest, "list.csv", {"label_column": "kind", "client_column": "site"}),
}


@pytest.mark.parametrize("stream", [False, True], ids=["memory", "stream"])
@pytest.mark.parametrize(("cls", "file", "keys"), SETS.values(), ids=SETS)
def test_skipping_is_as_if_they_had_never_been_there(folders, cls, file, keys, stream, caplog):
    keys = {**keys, "size": 5, "stream": stream, "fit": "squash"}
    with_bad = arrays(cls, folders / "spoilt" / file, on_error="skip", **keys)
    expected = arrays(cls, folders / "whole" / file, **keys)
    np.testing.assert_array_equal(with_bad.samples[:], expected.samples[:])
    np.testing.assert_array_equal(with_bad.labels, expected.labels)
    np.testing.assert_array_equal(with_bad.owners, expected.owners)
    reasons = {name.removeprefix(f"{folders}/spoilt/"): why for name, why in with_bad.skipped}
    wanted = {
        "a/03.png": "is empty (0 bytes)",
        "a/07.png": "is not a readable picture",
        "b/04.png": "there is no such file",
    }
    if cls is not Manifest:  # a search passes over a link to nowhere
        del wanted["b/04.png"]
    assert reasons == wanted
    assert f"{len(wanted)} of {27 + len(wanted)} pictures cannot be read" in caplog.text


@pytest.mark.parametrize("stream", [False, True], ids=["memory", "stream"])
def test_all_are_named_in_one_pass(folders, stream):
    path = folders / "spoilt" / "list.csv"
    with pytest.raises(DataError) as refusal:
        arrays(Manifest, path, size=5, stream=stream)
    assert str(refusal.value).replace(str(path.parent), "P") == (
        "3 of 30 pictures cannot be read (P/a/03.png is empty (0 bytes); P/a/07.png is not a "
        "readable picture; P/b/04.png: there is no such file); repair them or take them out "
        "(coterie check_data lists all), or set data.on_error=skip."
    )


def test_of_very_many_some_are_named(tmp_path):
    for number in range(200):
        (tmp_path / f"{number:03}.png").write_bytes(b"")
    with pytest.raises(
        DataError, match=r"^200 of 200 pictures .* and 180 more\); repair"
    ) as refusal:
        arrays(ImageFolder, tmp_path, on_error="skip")
    assert str(refusal.value).count("is empty") == 20


def test_a_limit_is_drawn_before_pictures_are_read(folders):
    data = arrays(ImageFolder, folders / "spoilt", on_error="skip", limit=12)
    assert 10 <= len(data.samples) <= 12


def test_neither_pipes_nor_devices_are_opened(tmp_path):
    Image.new("L", (4, 4)).save(tmp_path / "1.png")
    os.mkfifo(tmp_path / "2.png")
    (tmp_path / "3.png").symlink_to("/dev/zero")
    assert len(arrays(ImageFolder, tmp_path).samples) == 1
    (tmp_path / "list.csv").write_text("path\n1.png\n2.png\n/dev/zero\n/proc/self/environ\n")
    data = arrays(Manifest, tmp_path / "list.csv", on_error="skip")
    assert len(data.samples) == 1
    assert [why for _, why in data.skipped] == ["is not a regular file"] * 3
    os.mkfifo(tmp_path / "list.parquet")
    with pytest.raises(DataError, match=r"list\.parquet: .*\(it is not a regular file\); give"):
        arrays(Manifest, tmp_path / "list.parquet")


STRANGE = {
    "link": (lambda place: place.symlink_to("/proc/self/status"), "is not a regular file"),
    "pipe": (os.mkfifo, "is not a regular file"),
    "holes": (lambda place: (place.touch(), os.truncate(place, 3 << 30)), "has more than 2 GiB"),
}


@pytest.mark.parametrize("levels", [None, "auto"])
@pytest.mark.parametrize("kind", STRANGE)
def test_a_check_reads_no_strange_file_whatever_the_levels(tmp_path, kind, levels):
    make, why = STRANGE[kind]
    Image.fromarray(np.arange(16, dtype=np.uint8).reshape(4, 4)).save(tmp_path / "1.png")
    make(tmp_path / "2.png")
    (tmp_path / "list.csv").write_text("path\n1.png\n2.png\n")
    config = Manifest.Config(path=str(tmp_path / "list.csv"), levels=levels)
    report = check_data(Manifest(config), tmp_path / "out")
    assert [one.reason for one in report.halves["train"].bad] == [why]


def test_a_path_with_a_zero_byte_is_a_picture_that_cannot_be_opened(tmp_path):
    Image.new("L", (4, 4)).save(tmp_path / "1.png")
    (tmp_path / "list.csv").write_bytes(b"path\n1.png\na\0b.png\n")
    with pytest.raises(DataError, match=r"cannot be opened \(embedded null byte\)"):
        arrays(Manifest, tmp_path / "list.csv")


def tiled(width, length, height=16, bits=8, channels=1):
    """A TIFF, 16 pixels wide, whose tiles of a size all lie at the same place."""
    inside = min(width * length * channels * bits // 8, 1 << 20)
    content, count = zlib.compress(bytes(inside)), -(-height // length) * -(-16 // width)
    places = 8 + len(content)
    sizes, depths = places + 4 * count, places + 8 * count
    lists = struct.pack("<I", 8) * count + struct.pack("<I", len(content)) * count
    lists += struct.pack("<H", bits) * channels
    tags = {256: (1, 16), 257: (1, height), 258: (channels, depths if channels > 2 else bits)}
    tags |= {259: (1, 8), 262: (1, 2 if channels > 2 else 1), 277: (1, channels)}
    tags |= {322: (1, width), 323: (1, length)}
    tags |= {324: (count, places if count > 1 else 8)}
    tags |= {325: (count, sizes if count > 1 else len(content))}
    file = b"II*\0" + struct.pack("<I", places + len(lists)) + content + lists
    kinds = {258: 3}
    entries = (struct.pack("<HHII", tag, kinds.get(tag, 4), *tags[tag]) for tag in tags)
    return file + struct.pack("<H", len(tags)) + b"".join(entries) + bytes(4)


def scanned(scans):
    """A progressive JPEG of 4 million pixels whose last scan comes so many times."""
    file = io.BytesIO()
    Image.new("L", (2000, 2000), 128).save(file, "JPEG", progressive=True)
    content = file.getvalue()
    last = content.rindex(b"\xff\xc4", 0, content.rindex(b"\xff\xda"))
    return content[:-2] + content[last:-2] * scans + content[-2:]


def plain_scans(scans):
    """A JPEG of one scan for each colour of 9 million pixels, which come again and again."""
    file = io.BytesIO()
    Image.new("RGB", (64, 64)).save(file, "JPEG", subsampling=0)
    content = file.getvalue()
    size = content.index(b"\xff\xc0") + 5
    head = content[:size] + struct.pack(">HH", 3000, 3000) + content[size + 4 :]
    tables = (0, 0x11, 0x11)
    scan = [b"\xff\xda" + struct.pack(">HBBBI", 8, 1, 1 + n, tables[n], 0x3F0000) for n in range(3)]
    every = b"".join(scan[number % 3] for number in range(scans))
    return head[: head.index(b"\xff\xda")] + every + b"\xff\xd9"


def in_tiff(content, strips=1):
    """A TIFF of 4 million pixels for each strip, which are all the same JPEG."""
    places, sizes = struct.pack("<I", 8) * strips, struct.pack("<I", len(content)) * strips
    lists = 8 + len(content)
    tags = {256: (1, 2000), 257: (1, 2000 * strips), 258: (1, 8), 259: (1, 7), 262: (1, 1)}
    tags |= {273: (strips, lists if strips > 1 else 8), 277: (1, 1), 278: (1, 2000)}
    tags |= {279: (strips, lists + len(places) if strips > 1 else len(content))}
    file = b"II*\0" + struct.pack("<I", lists + 2 * len(places)) + content + places + sizes
    entries = (struct.pack("<HHII", tag, 4, *tags[tag]) for tag in tags)
    return file + struct.pack("<H", len(tags)) + b"".join(entries) + bytes(4)


def exif(times):
    """A JPEG with segments of EXIF."""
    file = io.BytesIO()
    Image.new("L", (2000, 2000), 128).save(file, "JPEG")
    segment = b"\xff\xe1\x10\x00Exif\0\0".ljust(0x1002, b"\0")
    return file.getvalue()[:2] + segment * times + file.getvalue()[2:]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (tiled(65536, 32752), "has tiles of 2,146 million pixels; save it again"),
        (tiled(4096, 4096, 100_000), "has tiles of 419 million pixels; save it again"),
        (tiled(4096, 4096, 100_000, 16, 3), "has tiles of 419 million pixels; save it again"),
        (scanned(1100), "scans of 4 million pixels; save it again"),
        (plain_scans(500), "has 500 scans of 9 million pixels; save it again"),
        (in_tiff(scanned(1100)), "scans of 4.0 million pixels.*; save it again"),
        (in_tiff(scanned(500), 2), "scans of 4.0 million pixels.*; save it again"),
        (exif(101), "has far too much EXIF; save it again"),
    ],
    ids=[
        "tiles",
        "tiles together",
        "deep tiles",
        "scans",
        "plain scans",
        "strip",
        "strips",
        "EXIF",
    ],
)
def test_a_picture_that_takes_far_more_than_its_pixels_is_refused(tmp_path, content, told):
    (tmp_path / "x.jpg").write_bytes(content)
    with pytest.raises(DataError, match=told):
        arrays(ImageFolder, tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        *(tiled(256, 256), tiled(16, 512, 100_000, 16, 3), scanned(20)),
        *(scanned(1) + b"\xff\xda\0\2" * 2000, plain_scans(3), in_tiff(scanned(9), 3), exif(3)),
    ],
    ids=["tiles", "rows", "scans", "a video behind it", "plain scans", "strips", "exif"],
)
def test_a_tile_larger_than_its_picture_and_some_scans_are_usual(content):
    assert open_picture(content).size > (15, 15)
    if is_tiff(content) and b"\xff\xda" not in content:
        assert read_tiff(content, None, 10**8, Room()).size
