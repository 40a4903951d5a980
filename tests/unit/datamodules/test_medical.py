"""DICOM and pictures of more than 8 bits, as a viewer shows them; shapes and sizes."""

import io
import logging
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, TiffImagePlugin

from coterie.datamodules.decoding import PixelFormat, decode
from coterie.datamodules.dicom import _size_of
from coterie.datamodules.folders import ImageFolder
from coterie.datamodules.resize import fit_images, resize_images
from coterie.errors import DataError

pydicom = pytest.importorskip("pydicom")
from pydicom.data import get_testdata_file  # noqa: E402
from pydicom.dataset import Dataset, FileMetaDataset  # noqa: E402
from pydicom.pixels import apply_modality_lut, apply_windowing  # noqa: E402
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid  # noqa: E402


def scan(values, photometric="MONOCHROME2", **fields):
    """The bytes of a DICOM file with 12 of 16 bits stored."""
    data = Dataset()
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data.file_meta.MediaStorageSOPClassUID = CTImageStorage
    data.file_meta.MediaStorageSOPInstanceUID = generate_uid()
    data.SOPClassUID = CTImageStorage
    data.SOPInstanceUID = data.file_meta.MediaStorageSOPInstanceUID
    data.Rows, data.Columns = values.shape
    data.BitsAllocated, data.BitsStored, data.HighBit = 16, 12, 11
    data.SamplesPerPixel, data.PixelRepresentation = 1, 0
    data.PhotometricInterpretation = photometric
    data.PixelData = values.astype("<u2").tobytes()
    for name, value in fields.items():
        setattr(data, name, value)
    file = io.BytesIO()
    data.save_as(file, enforce_file_format=True)
    return file.getvalue()


def shown(content, name="x", **keys):
    return decode(content, name, PixelFormat(mode="L", **keys)).pixels[0]


LEVELS = np.arange(0, 4096, 16, dtype=np.uint16).reshape(16, 16)
LUNG = {"RescaleSlope": 2, "RescaleIntercept": -1024, "WindowCenter": 40, "WindowWidth": 400}


def test_a_window_is_applied_to_rescaled_levels():
    data = pydicom.dcmread(io.BytesIO(scan(LEVELS, **LUNG)))
    values = apply_windowing(apply_modality_lut(data.pixel_array, data), data)
    low, high = -1024, 4095 * 2 - 1024
    expected = np.rint((values - low) / (high - low) * 255)
    found = shown(scan(LEVELS, **LUNG))
    np.testing.assert_array_equal(found, expected)
    assert (found.min(), found.max()) == (0, 255)
    assert 0 < (found == 0).mean() < 0.3  # below the window
    np.testing.assert_array_equal(shown(scan(LEVELS, "MONOCHROME1", **LUNG)), 255 - found)


@pytest.mark.parametrize("function", ["LINEAR_EXACT", "SIGMOID"])
def test_other_functions_of_windows(function):
    content = scan(LEVELS, VOILUTFunction=function, **LUNG)
    data = pydicom.dcmread(io.BytesIO(content))
    values = apply_windowing(apply_modality_lut(data.pixel_array, data), data)
    expected = (values + 1024) / (4095 * 2) * 255
    np.testing.assert_allclose(shown(content), expected, atol=0.51)


def test_given_levels_go_before_the_file_s_window():
    found = shown(scan(LEVELS, **LUNG), levels=(-160.0, 240.0))
    hounsfield = LEVELS * 2.0 - 1024
    np.testing.assert_array_equal(found, np.rint(np.clip((hounsfield + 160) / 400, 0, 1) * 255))


def test_without_a_window_the_levels_but_padding_fill_the_range():
    values = LEVELS.copy()
    values[0] = 4000
    found = shown(scan(np.where(values > 3000, 4000, values), PixelPaddingValue=4000))
    assert found[values <= 3000].max() == 255
    assert shown(scan(np.full((4, 4), 7))).max() == 0


@pytest.mark.parametrize(
    ("name", "colours"),
    [
        ("CT_small.dcm", False),
        ("MR_small.dcm", False),
        ("SC_rgb.dcm", True),
        ("examples_palette.dcm", True),
        ("examples_ybr_color.dcm", None),
        ("MR_small_RLE.dcm", False),
    ],
)
def test_real_files_of_scanners(name, colours):
    path = get_testdata_file(name, download=False)
    if path is None:
        pytest.skip("not shipped with this pydicom")
    content = open(path, "rb").read()  # noqa: PTH123, SIM115
    if colours is None:
        with pytest.raises(DataError, match=r"holds 30 frames; set data\.frame=0"):
            decode(content, name, PixelFormat())
        return
    picture = decode(content, name, PixelFormat())
    assert picture.found == ("RGB" if colours else "L")
    assert np.ptp(picture.pixels) > 100
    assert (np.ptp(picture.pixels, axis=0).max() > 0) == colours


def test_files_without_extension_are_found_and_bad_ones_named(tmp_path):
    (tmp_path / "IM0001").write_bytes(scan(LEVELS))
    (tmp_path / "notes").write_bytes(b"no picture")
    data = ImageFolder(ImageFolder.Config(path=str(tmp_path), mode="L")).arrays()
    assert data.samples.shape == (1, 1, 16, 16)
    (tmp_path / "x.dcm").write_bytes(scan(LEVELS)[:400])
    (tmp_path / "y.dcm").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"2 of 3 pictures .*x\.dcm is a picture .*y\.dcm is a"):
        ImageFolder(ImageFolder.Config(path=str(tmp_path), mode="L")).arrays()


def sbit_png(values, bits):
    """A 16-bit PNG that says how many bits are used."""
    file = io.BytesIO()
    Image.fromarray(values).save(file, "PNG")
    content = file.getvalue()
    chunk = b"sBIT" + bytes([bits])
    stated = struct.pack(">I", 1) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return content[:33] + stated + content[33:]


def tiff(values, **tags):
    info = TiffImagePlugin.ImageFileDirectory_v2()
    for tag, value in tags.items():
        info[int(tag.removeprefix("t"))] = value
    file = io.BytesIO()
    Image.fromarray(values).save(file, "TIFF", tiffinfo=info)
    return file.getvalue()


def test_twelve_bits_fill_the_range_where_the_file_says_so():
    wanted = np.rint(LEVELS / 4095 * 255)
    np.testing.assert_array_equal(shown(sbit_png(LEVELS, 12)), wanted)
    scaled = np.rint(LEVELS * (65535 / 4095)).astype(np.uint16)  # as PNG's specification wants it
    np.testing.assert_allclose(shown(sbit_png(scaled, 12)), wanted, atol=1)
    for header in (b"P5 16 16 4095\n", b"P5\n# by hand\n16 16\n4095\n"):
        file = header + LEVELS.astype(">u2").tobytes()
        np.testing.assert_allclose(shown(file), wanted, atol=1)
        np.testing.assert_allclose(shown(file, levels=(0, 4095)), wanted, atol=1)
        assert shown(file, levels=(0, 2000)).max() == 255
        assert shown(file, levels=(0, 2000))[0, 15] == round(LEVELS[0, 15] / 2000 * 255)


def test_twelve_bits_that_nothing_states_are_told(tmp_path, caplog):
    Image.fromarray(LEVELS).save(tmp_path / "1.png")
    keys = {"path": str(tmp_path), "mode": "L"}
    with caplog.at_level(logging.WARNING):
        dark = ImageFolder(ImageFolder.Config(**keys)).arrays().samples
    assert dark.max() < 17
    assert "1 of 1 pictures have 16 bits but no level above 4095" in caplog.text
    caplog.clear()
    bright = ImageFolder(ImageFolder.Config(**keys, levels=[0, 4095])).arrays().samples
    np.testing.assert_array_equal(bright[0, 0], np.rint(LEVELS / 4095 * 255))
    assert "level above" not in caplog.text


def test_levels_from_white_are_inverted_and_decimals_need_levels():
    big = (LEVELS * 16).astype(np.uint16)
    np.testing.assert_array_equal(255 - shown(tiff(big)), shown(tiff(big, t262=0)))
    decimal = tiff(np.linspace(-1, 1, 256, dtype=np.float32).reshape(16, 16))
    with pytest.raises(DataError, match=r"decimal numbers in -1\.\.1; set data\.levels"):
        shown(decimal)
    assert np.ptp(shown(decimal, levels=(-1.0, 1.0))) == 255


def test_shapes_are_squashed_cropped_or_boxed():
    wide = np.zeros((1, 3, 20, 40), np.uint8)
    wide[:, :, :, 10:30] = 200  # the middle square
    assert fit_images(wide, 10, "crop").min() == 200
    boxed = fit_images(wide, 10, "letterbox")
    assert boxed.shape == (1, 3, 10, 10)
    assert boxed[:, :, :2].max() == boxed[:, :, 8:].max() == 0
    np.testing.assert_array_equal(boxed[:, :, 2:7], resize_images(wide, (5, 10)))
    np.testing.assert_array_equal(fit_images(wide, 10, "squash"), resize_images(wide, 10))
    tall = wide.transpose(0, 1, 3, 2)
    np.testing.assert_array_equal(
        fit_images(tall, (9, 7), "crop"), fit_images(wide, (7, 9), "crop").transpose(0, 1, 3, 2)
    )
    for fit in ("crop", "letterbox"):
        assert fit_images(np.ones((1, 1, 1, 300), np.uint8), 8, fit).shape == (1, 1, 8, 8)


def test_shape_is_told_once_unless_chosen(tmp_path, caplog):
    for number in range(3):
        Image.new("RGB", (40, 20 + 20 * (number == 0))).save(tmp_path / f"{number}.png")
    for stream in (False, True):
        caplog.clear()
        data = ImageFolder(ImageFolder.Config(path=str(tmp_path), size=8, stream=stream)).arrays()
        assert len(data.samples[:]) == 3
        assert [message for message in caplog.messages if "shape" in message] == [
            "2 of 3 pictures have another shape than data.size and are squashed; set "
            "data.fit=crop or letterbox to keep their proportions, or squash to accept this."
        ]
    caplog.clear()
    ImageFolder(ImageFolder.Config(path=str(tmp_path), size=8, fit="squash")).arrays()
    assert caplog.messages == []


def deflated(content, zeros, before=b""):
    """The file as a deflated one, after other entries, and with a private one of so many zeros."""
    (length,) = struct.unpack_from("<I", content, 140)
    start = 144 + length
    packer = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = packer.compress(before) + packer.compress(content[start:])
    packed += packer.compress(struct.pack("<HH2sHI", 0x7FE1, 0x1010, b"OB", 0, zeros))
    for _ in range(zeros >> 20):
        packed += packer.compress(bytes(1 << 20))
    syntax = bytearray(content[:start])
    place = syntax.index(b"1.2.840.10008.1.2.1\0")
    syntax[place - 2 : place + 20] = struct.pack("<H", 22) + b"1.2.840.10008.1.2.1.99"
    syntax[140:144] = struct.pack("<I", length + 2)
    return bytes(syntax) + packed + packer.flush()


def test_a_deflated_file_is_read_and_grows_no_further_than_others():
    np.testing.assert_array_equal(shown(deflated(scan(LEVELS), 1 << 20)), shown(scan(LEVELS)))
    with pytest.raises(DataError, match=r"compressed bytes grow to 26843545[67] or more"):
        shown(deflated(scan(LEVELS), 260 << 20))


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        (
            struct.pack("<HH2sHI", 0x0008, 0x1140, b"SQ", 0, 0xFFFFFFFF)
            + struct.pack("<HHI", 0xFFFE, 0xE000, 0) * 200_000,
            "it has 200,000 items, and 100,000 are read at most",
        ),
        (
            struct.pack("<HH2sHI", 0x0009, 0x1010, b"OB", 0, 17 << 20) + bytes(17 << 20),
            "it has no picture in its first 16 MiB",
        ),
    ],
)
def test_a_deflated_file_of_endless_entries_is_refused(entry, told):
    with pytest.raises(DataError, match=told):
        shown(deflated(scan(LEVELS), 0, before=entry))


@pytest.mark.parametrize("kept", [{}, {"NumberOfFrames": 1000}])
def test_pixels_are_counted_before_they_are_decoded(kept):
    content = scan(LEVELS, Rows=20000, Columns=20000, **kept)
    with pytest.raises(DataError, match="x has 400 million pixels; make it smaller, or raise"):
        shown(content, frame=0)
    with pytest.raises(DataError, match="x has 0 million pixels; make it smaller, or raise"):
        shown(scan(LEVELS), max_pixels=100)


def test_a_scan_of_wide_colours_counts_as_more_pixels():
    colours = {"SamplesPerPixel": 3, "Columns": 16, "PlanarConfiguration": 0}
    content = scan(np.zeros((16, 48), np.uint16), "RGB", **colours)
    with pytest.raises(DataError, match=r"pixels of 6 bytes, .*data\.max_pixels=256"):
        decode(content, "x", PixelFormat(max_pixels=256))
    assert decode(content, "x", PixelFormat(max_pixels=384)).pixels.shape == (3, 16, 16)


def test_only_the_chosen_frame_is_decoded(monkeypatch):
    frames = np.stack([LEVELS, LEVELS.T, LEVELS])
    content = scan(LEVELS, NumberOfFrames=3, PixelData=frames.astype("<u2").tobytes())
    expected = shown(scan(LEVELS.T.copy()))
    monkeypatch.setattr(Dataset, "pixel_array", None)  # it decodes all of them
    np.testing.assert_array_equal(shown(content, frame=1), expected)


def pages_in_a_loop():
    """A TIFF of five channels whose only page follows itself."""
    tifffile = pytest.importorskip("tifffile")
    file = io.BytesIO()
    values = np.zeros((8, 8, 5), np.uint8)
    tifffile.imwrite(file, values, photometric="minisblack", planarconfig="contig")
    content = bytearray(file.getvalue())
    (start,) = struct.unpack_from("<I", content, 4)
    (entries,) = struct.unpack_from("<H", content, start)
    struct.pack_into("<I", content, start + 2 + 12 * entries, start)
    return bytes(content)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("frame", [None, 0, 10**6])
def test_pages_of_a_tiff_in_a_loop_end(frame):
    with pytest.raises(DataError, match=r"x is .* be read .it has more than 10000 pages"):
        decode(pages_in_a_loop(), "x", PixelFormat(mode="all", frame=frame))


def packed_scan(frame_size, told, kind="JPEG2000"):
    """A DICOM file whose compressed picture has another size than the file says."""
    frame = io.BytesIO()
    Image.new("L", frame_size).save(frame, kind)
    data = pydicom.dcmread(io.BytesIO(scan(np.zeros(told[::-1], np.uint16))))
    syntax = {"JPEG2000": "1.2.840.10008.1.2.4.90", "JPEG": "1.2.840.10008.1.2.4.50"}[kind]
    data.file_meta.TransferSyntaxUID = pydicom.uid.UID(syntax)
    data.BitsAllocated, data.BitsStored, data.HighBit = 8, 8, 7
    data.PixelData = pydicom.encaps.encapsulate([frame.getvalue()])
    data["PixelData"].VR, data["PixelData"].is_undefined_length = "OB", True
    file = io.BytesIO()
    data.save_as(file, enforce_file_format=True)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["JPEG2000", "JPEG"])
def test_a_compressed_picture_of_another_size_is_not_decoded(kind):
    assert shown(packed_scan((16, 12), (16, 12), kind)).shape == (12, 16)
    with pytest.raises(
        DataError, match="its picture is of 3000×2000 pixels, and its header says 16×12"
    ):
        shown(packed_scan((3000, 2000), (16, 12), kind))


def test_what_pydicom_writes_in_its_log_is_not_told_twice(caplog):
    damaged = packed_scan((64, 48), (64, 48)).replace(b"\xff\x93", b"\xff\x00")
    with pytest.raises(DataError, match="cannot be read"):
        shown(damaged)
    assert not [record for record in caplog.records if record.name.startswith("pydicom")]


@pytest.mark.parametrize("table", ["none", "of frames", "of other frames"])
def test_the_frame_that_is_looked_at_is_the_one_that_is_decoded(table):
    """An extended table of offsets goes before the order of the fragments."""
    fragments = []
    for size in ((16, 12), (3000, 2000)):
        frame = io.BytesIO()
        Image.new("L", size).save(frame, "JPEG")
        fragments.append(frame.getvalue() + bytes(len(frame.getvalue()) % 2))
    data = pydicom.dcmread(io.BytesIO(packed_scan((16, 12), (16, 12), "JPEG")))
    data.NumberOfFrames = 2
    data.PixelData = pydicom.encaps.encapsulate(fragments, has_bot=False)
    data["PixelData"].VR, data["PixelData"].is_undefined_length = "OB", True
    if table != "none":
        order = [0, 1] if table == "of frames" else [1, 0]
        places, lengths = (0, len(fragments[0]) + 8), [*map(len, fragments)]
        data.ExtendedOffsetTable = struct.pack("<2Q", *(places[n] for n in order))
        data.ExtendedOffsetTableLengths = struct.pack("<2Q", *(lengths[n] for n in order))
    file = io.BytesIO()
    data.save_as(file, enforce_file_format=True)
    if table == "of other frames":
        with pytest.raises(DataError, match="its picture is of 3000×2000 pixels"):
            shown(file.getvalue(), frame=0)
    else:
        assert shown(file.getvalue(), frame=0).shape == (12, 16)


@pytest.mark.parametrize("marker", [0xC1, 0xC3, 0xF7], ids=["extended", "lossless", "JPEG-LS"])
def test_other_kinds_of_jpeg_say_their_size_too(marker):
    """Plugins of pydicom decode them, and Pillow cannot open them."""
    frame = struct.pack(">HBBHBHHB", 0xFFD8, 0xFF, marker, 11, 12, 480, 640, 1) + bytes(99)
    assert _size_of(frame) == (640, 480)
