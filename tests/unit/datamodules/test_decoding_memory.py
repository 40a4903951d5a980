"""Pictures of few bytes that take much memory are refused, and others take little more than theirs.

Memory is measured as the most that the process holds, since Pillow's is not Python's.
"""

import ctypes
import io
import lzma
import struct
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from coterie.datamodules import decoding_memory, tiff_growth
from coterie.datamodules.decoding import PixelFormat, UnreadablePictureError, decode, level_range
from coterie.datamodules.decoding_memory import Room, in_parts, tiles
from coterie.datamodules.dicom import stretch

AFTER = "after"
_STATUS = Path("/proc/self/status")


def held(field):
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def peak_of(call):
    """Return the bytes that a call takes at most, beyond what the process holds before."""
    Path("/proc/self/clear_refs").write_text("5")
    before = held("VmRSS")
    call()
    return held("VmHWM") - before


def written_tiff(*tags, after=bytes(64)):
    """A TIFF of these tags, each (number, type, count, value); AFTER is the place of `after`."""
    tags = sorted(tags)
    end = 8 + 2 + 12 * len(tags) + 4
    long = {
        tag: struct.pack(f"<{count}{'HI'[kind == 4]}", *np.ravel(value).tolist())
        for tag, kind, count, value in tags
        if value != AFTER
    }
    extra = b"".join(data for data in long.values() if len(data) > 4)
    entries, place = struct.pack("<H", len(tags)), end
    for tag, kind, count, _ in tags:
        data = long.get(tag, struct.pack("<I", end + len(extra)))
        if len(data) > 4:
            data, place = struct.pack("<I", place), place + len(data)
        entries += struct.pack("<HHI", tag, kind, count) + data.ljust(4, b"\0")
    return b"II*\0" + struct.pack("<I", 8) + entries + bytes(4) + extra + after


def shape_tags(width, height, channels, bits, kind=1, packed=8):
    return [
        *((256, 4, 1, width), (257, 4, 1, height), (258, 3, channels, (bits,) * channels)),
        *((259, 3, 1, packed), (262, 3, 1, 1), (277, 3, 1, channels), (284, 3, 1, 1)),
        (339, 3, channels, (kind,) * channels),
    ]


def empty_tiff(width, height, channels, bits, kind=1):
    """A TIFF of a kilobyte whose strips are empty."""
    strips = [(273, 4, 100, (0,) * 100), (278, 4, 1, height // 100), (279, 4, 100, (0,) * 100)]
    return written_tiff(*shape_tags(width, height, channels, bits, kind), *strips)


BOMBS = {
    "ten channels": (empty_tiff(14_000, 14_000, 10, 16), 20, 980),
    "three of 64 bits": (empty_tiff(10_000, 10_000, 3, 64, kind=3), 24, 600),
    "a hundred of 8 bits": (empty_tiff(9_000, 9_000, 100, 8), 100, 2025),
}


@pytest.mark.parametrize("mode", ["RGB", "all"])
@pytest.mark.parametrize("name", BOMBS)
def test_channels_and_bits_count_as_pixels(name, mode):
    content, size, counted = BOMBS[name]

    def refused():
        with pytest.raises(UnreadablePictureError) as refusal:
            decode(content, "x", PixelFormat(mode=mode, size=4))
        told = str(refusal.value)
        assert f"million pixels of {size} bytes, which count as {counted:,} million" in told
        assert told.endswith("make it smaller, or raise data.max_pixels=200000000.")
        with pytest.raises(UnreadablePictureError, match="which count as"):
            level_range(content, "x", PixelFormat())

    assert peak_of(refused) < 50e6


def zeros(packer, megabytes):
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(megabytes)) + packer.flush()


PLACES = {
    "strip": (273, 279, [(278, 4, 1, 10)]),
    "tile": (324, 325, [(322, 4, 1, 16), (323, 4, 1, 16)]),
}


@pytest.mark.parametrize("form", PLACES)
@pytest.mark.parametrize("packed", [8, 34925])
def test_a_part_of_a_tiff_does_not_grow_beyond_the_picture(monkeypatch, packed, form):
    monkeypatch.setattr(tiff_growth, "most_from", lambda packed: 20 << 20)
    part = zeros(zlib.compressobj() if packed == 8 else lzma.LZMACompressor(), 60)
    place, length, others = PLACES[form]
    parts = [(place, 4, 1, AFTER), (length, 4, 1, len(part)), *others]
    content = written_tiff(*shape_tags(10, 10, 10, 16, packed=packed), *parts, after=part)

    def refused():
        with pytest.raises(
            UnreadablePictureError, match=r"compressed bytes of it grow to 2[0-9]{7} "
        ):
            decode(content, "x", PixelFormat(mode="all"))

    assert peak_of(refused) < 50e6


@pytest.mark.parametrize("form", ["zlib", "lzma"])
def test_packed_tiffs_are_read(monkeypatch, form):
    monkeypatch.setattr(tiff_growth, "most_from", lambda packed: 1)  # which looks through all
    pixels, stream = np.random.default_rng(0).integers(0, 256, (40, 30, 6), np.uint8), io.BytesIO()
    tifffile.imwrite(
        stream, pixels, compression=form, photometric="minisblack", planarconfig="contig"
    )
    found = decode(stream.getvalue(), "x", PixelFormat(mode="all"))
    assert np.array_equal(found.pixels, pixels.transpose(2, 0, 1))


def encoded(image, form="PNG"):
    stream = io.BytesIO()
    image.save(stream, form)
    return stream.getvalue()


GREY = encoded(Image.new("1", (9_000, 9_000)))
MANY = {
    "png": GREY,
    "tiff": empty_tiff(9_000, 9_000, 4, 8),
    "tiff of six": empty_tiff(5_000, 5_000, 6, 16),
}


@pytest.mark.parametrize("name", MANY)
def test_what_the_memory_does_not_hold_is_refused_at_once(monkeypatch, name):
    monkeypatch.setattr(decoding_memory, "free_memory", lambda: 50_000_000)
    monkeypatch.setattr(decoding_memory, "_LARGE", 10_000_000)
    with pytest.raises(
        UnreadablePictureError,
        match=r"takes \d+ MB to decode, but this machine has 50\.0 MB free; make it smaller",
    ):
        decode(MANY[name], "x", PixelFormat())


SIDE = 2_800
FORMS = {
    "16 bits with levels": (Image.new("I;16", (SIDE, SIDE)), {"levels": (0.0, 4095.0)}, 13),
    "16 bits": (Image.new("I;16", (SIDE, SIDE)), {}, 13),
    "transparent": (Image.new("RGBA", (SIDE, SIDE)), {}, 13),
    "transparent palette": (Image.new("P", (SIDE, SIDE)), {}, 13),
    "colours to grey": (Image.new("RGB", (SIDE, SIDE)), {"mode": "L"}, 9),
}


@pytest.mark.parametrize("name", FORMS)
def test_decoding_takes_little_more_than_the_picture(name):
    image, keys, most = FORMS[name]
    if image.mode == "P":
        image.info["transparency"] = 0
    content, wanted = encoded(image), PixelFormat(size=4, **keys)
    small = encoded(image.resize((40, 40)))
    decode(small, "x", wanted)  # what is imported then
    taken = peak_of(lambda: decode(content, "x", wanted))
    assert taken / SIDE**2 < most


@pytest.mark.parametrize("shape", [(1, 3_000_000), (3_000_000, 1)], ids=["tall", "wide"])
def test_a_thin_pictures_rows_and_resize_are_counted(monkeypatch, shape):
    counted, take = [], Room.take

    def counting(room, needed):
        counted.append(needed)
        take(room, needed)

    decode(encoded(Image.new("L", (40, 40))), "x", PixelFormat(size=16))
    monkeypatch.setattr(Room, "take", counting)
    content = encoded(Image.new("L", shape))
    ctypes.CDLL(None).malloc_trim(0)  # or what was freed before counts as held
    taken = peak_of(lambda: decode(content, "x", PixelFormat(size=16)))
    assert 0.5 * sum(counted) < taken < 1.1 * sum(counted)


def random_picture(mode):
    pixels = np.random.default_rng(0).integers(0, 256, (13, 17, 4), dtype=np.uint8)
    if mode == "P":
        image = Image.fromarray(pixels[..., 0], "L").convert("P")
        image.info["transparency"] = bytes(range(256))
        return image
    return Image.fromarray(pixels, "RGBA").convert(mode)


@pytest.mark.parametrize("wanted", ["L", "RGB", "all"])
@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"])
def test_parts_give_the_bits_of_the_whole(monkeypatch, mode, wanted):
    image = random_picture(mode) if mode != "I;16" else Image.new("I;16", (17, 13), 700)
    content = encoded(image, "TIFF" if mode == "CMYK" else "PNG")
    whole = decode(content, "x", PixelFormat(mode=wanted))
    for size in (1, 5, 40):
        monkeypatch.setattr(decoding_memory, "_PART", size)
        parts = decode(content, "x", PixelFormat(mode=wanted))
        assert np.array_equal(parts.pixels, whole.pixels)
        assert parts[1:] == whole[1:]


def test_numbers_are_stretched_in_parts_of_any_layout(monkeypatch):
    values = np.random.default_rng(1).normal(size=(5, 6, 7)).transpose(2, 0, 1)
    whole = stretch(values, -1, 1)
    monkeypatch.setattr(decoding_memory, "_PART", 4)
    assert np.array_equal(stretch(values, -1, 1), whole)
    assert in_parts(np.zeros((0, 3)), lambda part: part.astype(np.uint8)).shape == (0, 3)
    boxes = list(tiles(9, 2))
    assert sum((right - left) * (low - top) for left, top, right, low in boxes) == 18
    assert list(tiles(0, 5)) == []


def test_large_pictures_are_decoded_one_at_a_time(monkeypatch):
    monkeypatch.setattr(decoding_memory, "_LARGE", 100)
    inside = threading.Event()

    def other():
        with Room() as room:
            room.take(1000)
            inside.set()

    thread = threading.Thread(target=other)
    with Room() as room:
        room.take(200)
        room.take(300)
        thread.start()
        assert not inside.wait(0.2)
        with Room() as small:
            small.take(99)
    thread.join(10)
    assert inside.is_set()


def test_a_level_of_minus_one_is_no_transparent_one():
    stream = io.BytesIO()
    tifffile.imwrite(stream, np.full((4, 4), -1, np.float32))
    found = decode(stream.getvalue(), "x.tif", PixelFormat(mode="L", levels=(-2.0, 0.0)))
    assert np.all(found.pixels == 128)
