"""Pictures as cameras, scanners and the web make them: none is taken for another, silently."""

import io
import logging
import struct
import warnings

import numpy as np
import pytest
import tifffile
from PIL import Image, ImageOps

from coterie.config import free_memory
from coterie.contract.data_checks import check_data as check_arrays
from coterie.datamodules import decoding, image_files
from coterie.datamodules.checking import check_data
from coterie.datamodules.decoding import PixelFormat, UnreadablePictureError, decode, level_range
from coterie.datamodules.fitting import Fitting, as_trained
from coterie.datamodules.folders import ClientFolders, ImageFolder
from coterie.datamodules.image_files import decode_images
from coterie.datamodules.npz import NPZ
from coterie.datamodules.site_levels import measured_levels
from coterie.datamodules.streams import open_samples
from coterie.errors import ConfigError, DataError

RAMP = np.tile(np.arange(0, 240, 10, dtype=np.uint8), (16, 1))


def encoded(image, form="PNG", **options):
    stream = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(
        stream, form, **options
    )
    return stream.getvalue()


def held(number):
    exif = Image.Exif()
    exif[0x0112] = number
    return exif


def shown(content, name="x", **pixel_format):
    return decode(content, name, PixelFormat(mode="L", **pixel_format))


def folder(path, **files):
    path.mkdir(exist_ok=True)
    for name, content in files.items():
        (path / name.replace("_", ".")).write_bytes(content)
    return path


def images(path, **keys):
    return ImageFolder(ImageFolder.Config(path=str(path), **keys)).arrays()


@pytest.mark.parametrize("number", range(1, 9))
@pytest.mark.parametrize("form", ["PNG", "WEBP", "JPEG", "TIFF"])
def test_pictures_stand_upright(number, form):
    options = {"lossless": True} if form == "WEBP" else {}
    content = encoded(Image.fromarray(RAMP), form, exif=held(number), **options)
    with Image.open(io.BytesIO(content)) as image:
        wanted = np.asarray(ImageOps.exif_transpose(image).convert("L"))
    picture = shown(content)
    np.testing.assert_array_equal(picture.pixels[0], wanted)
    assert picture.shape == wanted.shape
    if form != "TIFF":
        assert picture.held == number
        stored = shown(content, exif=False)
        assert (stored.shape, stored.held) == (RAMP.shape, 1)


def test_deep_pictures_stand_upright_too():
    deep = (RAMP.astype(np.uint16) * 257)[:, :20]
    content = encoded(Image.fromarray(deep), exif=held(6))
    np.testing.assert_array_equal(shown(content).pixels[0], np.rot90(RAMP[:, :20], 3))


def test_a_png_may_tell_how_it_was_held_behind_its_pixels():
    content = encoded(RAMP, exif=held(6))
    start = content.index(b"eXIf") - 4
    end = start + 12 + int.from_bytes(content[start : start + 4])
    moved = content[:start] + content[end:-12] + content[start:end] + content[-12:]
    assert moved.index(b"eXIf") > moved.index(b"IDAT")
    np.testing.assert_array_equal(shown(moved).pixels, shown(content).pixels)


@pytest.mark.parametrize(
    ("form", "exif"),
    [
        ("JPEG", b"II*\0\x08\0\0\0\xff\xff"),
        ("WEBP", b"MM\0*\0"),  # on which Pillow raises struct.error
        ("WEBP", b"MM\0\xd3\0\0\0\x08\0\x02"),  # SyntaxError
    ],
)
def test_damaged_exif_is_no_reason_to_refuse_or_to_warn(recwarn, form, exif):
    content = encoded(RAMP, form, exif=b"Exif\0\0" + exif)
    assert shown(content).held == 1
    assert not [w for w in recwarn if "EXIF" not in str(w.message)]


def test_a_turned_picture_is_counted_and_predicted_alike(tmp_path):
    path = folder(
        tmp_path / "p", a_png=encoded(RAMP), b_png=encoded(np.rot90(RAMP, 1), exif=held(6))
    )
    data = ImageFolder(ImageFolder.Config(path=str(path), mode="L"))
    samples = data.arrays().samples
    np.testing.assert_array_equal(samples[0], samples[1])
    assert check_data(data, tmp_path).halves["train"].tally.turned == 1
    kept = as_trained({"exif": False, "background": "white", "frame": 2, "levels": [0, 9]})[
        "pixel_format"
    ]
    assert (kept.exif, kept.background, kept.frame, kept.levels) == (False, "white", 2, (0, 9))
    as_stored = Fitting((1, 16, 24), images=True, mode="L", pixel_format=PixelFormat(exif=False))
    one = as_stored.readable([path / "b.png"], ["b"]).images
    assert not np.array_equal(one[0], samples[0])


def icon(ink, share):
    """A disc of this grey on a ground that is transparent for this share."""
    pixels = np.zeros((20, 20, 4), np.uint8)
    pixels[: round(20 * (1 - share))] = (ink, ink, ink, 255)
    return pixels


@pytest.mark.parametrize(
    ("share", "keys", "ground"),
    [(0.7, {}, 255), (0.3, {}, 0), (0.7, {"background": "black"}, 0)],
)
def test_transparent_pictures_have_a_ground(share, keys, ground):
    picture = shown(encoded(icon(100, share)), **keys)
    assert set(np.unique(picture.pixels)) == {100, ground}
    assert picture.ground == {0: "black", 255: "white"}[ground]


def test_black_icons_are_not_all_the_same(tmp_path, caplog):
    for number in range(2, 6):
        drawn = icon(0, 0.1 * number + 0.3)
        (tmp_path / f"{number}.png").write_bytes(encoded(drawn))
    (tmp_path / "full.png").write_bytes(encoded(icon(50, 0.1)))
    with caplog.at_level(logging.WARNING):
        samples = images(tmp_path).samples
    assert len(np.unique(samples.reshape(5, -1), axis=0)) == 5
    assert "white in the 3 that are mostly transparent, and black" in caplog.text


def test_where_the_ground_hides_all_it_is_named(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes(encoded(icon(255, 0.6 + 0.1 * number)))
    data = ImageFolder(ImageFolder.Config(path=str(tmp_path)))
    out = tmp_path / ".out"
    out.mkdir()
    assert check_data(data, out).halves["train"].tally.plain == 3
    with pytest.raises(DataError, match=r"are the same, .*and data\.background if"):
        check_arrays(data.arrays())


@pytest.mark.parametrize("form", ["TIFF", "WEBP", "GIF", "PNG", "AVIF"])
def test_one_of_several_frames_is_chosen_or_they_are_refused(tmp_path, form):
    frames = [Image.fromarray(np.full((16, 16), 60 * n, np.uint8)) for n in range(4)]
    options = {"lossless": True} if form == "WEBP" else {}
    content = encoded(frames[0], form, save_all=True, append_images=frames[1:], **options)
    with pytest.raises(UnreadablePictureError, match=r"x holds 4 frames; set data\.frame=0 to"):
        shown(content)
    assert abs(int(shown(content, frame=2).pixels.mean()) - 120) < 4
    with pytest.raises(UnreadablePictureError, match=r"holds 4 frames, .* lower data\.frame=4"):
        shown(content, frame=4)
    assert shown(encoded(frames[1]), frame=3).pixels.mean() == 60  # it has only one
    many = encoded(
        frames[0],
        form,
        save_all=True,
        append_images=[f.copy() for f in frames[1:3] * 60],
        **options,
    )
    told = "100 frames" if form == "TIFF" else r"\d+ frames"
    with pytest.raises(UnreadablePictureError, match=rf"x holds {told}; set data\.frame=0 to"):
        shown(many)
    for number in range(2):
        (tmp_path / f"{number}.{form}").write_bytes(content)
    with pytest.raises(DataError, match=r"2 of 2 pictures .*; set data\.frame=0 to take the first"):
        images(tmp_path)


def test_a_phones_map_of_brightness_is_no_frame():
    photo = Image.fromarray(RAMP)
    content = encoded(photo, "MPO", save_all=True, append_images=[photo.resize((4, 4))])
    assert shown(content).shape == RAMP.shape


@pytest.mark.parametrize("ending", ["gif", "avif", "jfif", "jpe", "apng", "heic"])
def test_more_formats_are_read(tmp_path, ending):
    form = {"jfif": "JPEG", "jpe": "JPEG", "apng": "PNG", "heic": "HEIF"}.get(
        ending, ending.upper()
    )
    if form == "HEIF":
        from pillow_heif import from_pillow

        from_pillow(Image.fromarray(RAMP).convert("RGB").resize((64, 64))).save(
            tmp_path / f"x.{ending}"
        )
    else:
        (tmp_path / f"x.{ending}").write_bytes(encoded(Image.fromarray(RAMP), form))
    found = images(tmp_path, mode="L").samples
    assert found.shape[0] == 1
    assert np.corrcoef(found[0, 0].mean(axis=0), np.arange(found.shape[3]))[0, 1] > 0.95


def test_only_listed_formats_are_opened(tmp_path):
    for form in ("PCX", "TGA", "ICO"):
        with pytest.raises(UnreadablePictureError, match="is not a readable picture"):
            shown(encoded(Image.fromarray(RAMP).convert("RGB"), form))


def blank_png(height, width):
    """A PNG of this size, of one bit a pixel and nearly no bytes."""
    return encoded(Image.new("1", (width, height)))


def test_large_pictures_are_read_without_a_warning_up_to_the_limit():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert shown(blank_png(9000, 10_700), size=4).shape == (9000, 10_700)  # 96 megapixels
    with pytest.raises(UnreadablePictureError) as refusal:
        shown(blank_png(15_000, 14_000))
    told = "x has 210 million pixels; make it smaller, or raise data.max_pixels=200000000."
    assert str(refusal.value) == told
    assert shown(blank_png(15_000, 14_000), size=4, max_pixels=210_000_000).pixels.shape == (
        1,
        4,
        4,
    )
    with pytest.raises(UnreadablePictureError, match=r"has 0 million.*data\.max_pixels=99"):
        shown(encoded(RAMP), max_pixels=99)


@pytest.mark.parametrize("form", ["TIFF", "WEBP"])
def test_pillows_own_limit_neither_refuses_nor_warns(form, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    stream = io.BytesIO()
    options = {"compression": "tiff_lzw"} if form == "TIFF" else {"lossless": True}
    Image.new("RGB", (30, 40), (9, 9, 9)).save(stream, form, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert shown(stream.getvalue(), size=4).shape == (40, 30)
        assert level_range(stream.getvalue(), "x", PixelFormat()) is None
    assert Image.MAX_IMAGE_PIXELS == 100
    with pytest.raises(UnreadablePictureError, match=r"data\.max_pixels=1199"):
        shown(stream.getvalue(), max_pixels=1199)


@pytest.mark.parametrize(("tag", "kind"), [(257, 99), (277, 3)])
def test_what_libraries_log_of_a_damaged_picture_is_not_shown(tag, kind, caplog):
    stream = io.BytesIO()
    tifffile.imwrite(stream, np.zeros((9, 9, 3), np.uint16), photometric="rgb")
    content = bytearray(stream.getvalue())
    (first,) = struct.unpack_from("<I", content, 4)
    (count,) = struct.unpack_from("<H", content, first)
    for place in range(first + 2, first + 2 + 12 * count, 12):
        if struct.unpack_from("<H", content, place) == (tag,):
            struct.pack_into("<HIH", content, place + 2, kind, 1, 65535)
    with caplog.at_level(logging.WARNING), pytest.raises(UnreadablePictureError):
        shown(bytes(content), size=4)
    assert not caplog.messages


@pytest.mark.parametrize("form", ["TIFF", "GIF"])
def test_a_chosen_frame_is_as_limited_as_the_first(form):
    stream, large = io.BytesIO(), Image.new("L", (50, 50), 7)
    if form == "TIFF":
        Image.new("L", (8, 8), 3).save(stream, "TIFF", save_all=True, append_images=[large])
    else:
        Image.new("L", (50, 50), 3).save(stream, "GIF", save_all=True, append_images=[large])
    content = stream.getvalue()
    if form == "GIF":  # its screen becomes smaller than its frames
        content = content[:6] + struct.pack("<HH", 8, 8) + content[10:]
    assert shown(content, frame=1, size=4).shape == (50, 50)
    with pytest.raises(UnreadablePictureError, match=r"data\.max_pixels=2499"):
        shown(content, frame=1, size=4, max_pixels=2499)


def test_what_memory_cannot_hold_is_refused_before_it_is_read(monkeypatch):
    photo, read = encoded(np.zeros((300, 400, 3), np.uint8)), []
    real = image_files.decode
    monkeypatch.setattr(image_files, "decode", lambda *a: read.append(1) or real(*a))
    monkeypatch.setattr(image_files, "free_memory", lambda: 10_000_000)
    names = ["x"] * 5000
    with pytest.raises(DataError) as refusal:
        decode_images([photo] * 5000, names, PixelFormat())
    assert str(refusal.value) == (
        "5,000 pictures of 300×400 pixels and 3 channels take 1.80 GB, but this machine has 10.0 "
        "MB free; set data.size to make them smaller, or data.stream=true to keep none in memory."
    )
    assert len(read) == 1
    assert len(decode_images([photo] * 20, names[:20], PixelFormat(size=8)).images) == 20


def test_free_memory_is_what_the_container_leaves(tmp_path, monkeypatch):
    assert 0 < free_memory.free_memory() < 1 << 50
    (tmp_path / "max").write_text("3000\n")
    (tmp_path / "current").write_text("1000\n")
    monkeypatch.setattr(free_memory, "_LIMITS", ((tmp_path / "max", tmp_path / "current"),))
    assert free_memory.free_memory() == 1800
    (tmp_path / "max").write_text("max\n")
    assert free_memory.free_memory() > 1800


def test_no_error_of_a_decoder_escapes(monkeypatch):
    for error in (MemoryError(), RuntimeError("bad"), KeyError("x"), AttributeError("y")):

        def fail(*_, error=error, **__):
            raise error

        monkeypatch.setattr(decoding, "open_picture", fail)
        with pytest.raises(UnreadablePictureError):
            shown(encoded(RAMP))


BANDS = np.random.default_rng(0).integers(0, 256, (12, 10, 6), np.uint8)


def tiff(values, **options):
    stream = io.BytesIO()
    tifffile.imwrite(stream, values, **options)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "levels", "wanted"),
    [
        (tiff(BANDS, photometric="minisblack", planarconfig="contig"), None, BANDS),
        (
            tiff(np.moveaxis(BANDS, 2, 0), photometric="minisblack", planarconfig="separate"),
            None,
            BANDS,
        ),
        (
            tiff(BANDS.astype(np.uint16) * 16, photometric="minisblack", planarconfig="contig"),
            (0, 4080),
            BANDS,
        ),
        (
            tiff((BANDS / 255).astype(np.float32), photometric="minisblack", planarconfig="contig"),
            None,
            BANDS,
        ),
    ],
)
def test_a_tiff_of_many_channels_keeps_them(content, levels, wanted):
    picture = decode(content, "x.tif", PixelFormat(levels=levels))
    np.testing.assert_array_equal(picture.pixels, np.moveaxis(wanted, 2, 0))
    assert decode(content, "x.tif", PixelFormat(levels=levels, size=4)).pixels.shape == (6, 4, 4)


def test_deep_colours_are_scaled_by_their_levels():
    deep = BANDS[..., :3].astype(np.uint16) * 16
    content = tiff(deep, photometric="rgb")
    np.testing.assert_array_equal(
        decode(content, "x", PixelFormat(levels=(0, 4080))).pixels,
        np.moveaxis(BANDS[..., :3], 2, 0),
    )
    assert decode(content, "x", PixelFormat()).dark


def test_all_channels_are_kept_where_asked():
    four = encoded(np.dstack([RAMP] * 3 + [np.full_like(RAMP, 7)]))
    assert decode(four, "x", PixelFormat(mode="all")).pixels.shape == (4, *RAMP.shape)
    assert decode(four, "x", PixelFormat()).pixels.shape == (3, *RAMP.shape)
    assert decode(encoded(RAMP), "x", PixelFormat(mode="all")).pixels.shape == (1, *RAMP.shape)


def test_decimal_tiffs_in_0_to_1_need_no_levels():
    floats = np.linspace(0, 1, 256, dtype=np.float32).reshape(16, 16)
    np.testing.assert_array_equal(shown(encoded(floats, "TIFF")).pixels.ravel(), np.arange(256))
    with pytest.raises(UnreadablePictureError, match=r"in 0\.\.4; set data\.levels .*\[0,4\]"):
        shown(encoded(floats * 4, "TIFF"))


def npz(tmp_path, samples, **keys):
    np.savez(tmp_path / "x.npz", samples=samples)
    return NPZ(NPZ.Config(path=str(tmp_path / "x.npz"), **keys)).arrays().samples


@pytest.mark.parametrize("channels", [2, 4, 6])
@pytest.mark.parametrize("first", [False, True])
def test_arrays_of_other_channels(tmp_path, channels, first):
    values = np.random.default_rng(0).integers(0, 256, (5, 12, 10, channels), np.uint8)
    given = np.moveaxis(values, 3, 1) if first else values
    np.testing.assert_array_equal(npz(tmp_path, given), np.moveaxis(values, 3, 1))


def test_arrays_of_other_numbers(tmp_path):
    grey = np.arange(256, dtype=np.uint8).reshape(4, 8, 8)
    np.testing.assert_array_equal(npz(tmp_path, (grey / 255).astype(np.float32))[:, 0], grey)
    np.testing.assert_array_equal(npz(tmp_path, grey / 255.0)[:, 0], grey)
    np.testing.assert_array_equal(npz(tmp_path, grey > 99)[:, 0], (grey > 99) * np.uint8(255))
    deep = grey.astype(np.uint16) * 16
    np.testing.assert_array_equal(npz(tmp_path, deep, levels=(0, 4080))[:, 0], grey)
    with pytest.raises(DataError, match=r"holds images of uint16 in 0\.\.4080; .*\[0,4080\]"):
        npz(tmp_path, deep)
    with pytest.raises(DataError, match=r"decimal numbers in -1\.\.254; set data\.levels"):
        npz(tmp_path, grey - 1.0)
    with pytest.raises(DataError, match="are not all finite"):
        npz(tmp_path, np.where(grey == 7, np.nan, grey / 255))
    with pytest.raises((ConfigError, ValueError), match="give the lower one first"):
        NPZ.Config(path="x", levels=(3, 1))


def test_decimal_images_are_predicted_as_trained():
    fitting = Fitting((1, 2, 2), images=True, mode="L", pixel_format=PixelFormat(levels=(0, 4080)))
    deep = np.array([[[0, 16], [160, 4080]]], np.uint16)
    assert fitting.array(deep, "x").ravel().tolist() == [0, 1, 10, 255]
    plain = Fitting((1, 2, 2), images=True, mode="L")
    assert plain.array(np.ones((1, 2, 2)), "x").max() == 255
    for other in (deep, deep / 16.0 - 1, np.where(deep, np.nan, 0.0)):
        with pytest.raises(
            DataError, match=r"^x: it .*convert it to the form of the run's"
        ) as told:
            plain.array(other, "x")
        assert "data.levels" not in str(told.value)


def test_unfit_pictures_of_a_prediction_name_no_key_of_data():
    content = encoded(
        Image.fromarray(RAMP), "TIFF", save_all=True, append_images=[Image.fromarray(RAMP)]
    )
    found = Fitting((1, 16, 24), images=True, mode="L").readable([content], ["two.tif"])
    assert "frames; convert it to the form of the run's" in str(found.bad[0])


def site(path, name, bits, count=3):
    """Ramps over all levels of a scanner of so many bits, in files that state 16."""
    (path / name).mkdir(parents=True)
    ramp = np.linspace(0, 2**bits - 1, 256).round().astype(np.uint16).reshape(16, 16)
    for number in range(count):
        content = encoded(Image.fromarray(np.roll(ramp, number, axis=0)))
        (path / name / f"{number}.png").write_bytes(content)


def clients(path, **keys):
    return ClientFolders(ClientFolders.Config(path=str(path), mode="L", **keys)).arrays().samples


@pytest.mark.parametrize("levels", ["auto", {"a": (0, 4095), "b": (0, 65535)}])
@pytest.mark.parametrize("streamed", [False, True])
def test_sites_of_other_bits_look_alike(tmp_path, levels, streamed):
    site(tmp_path, "a", 12)
    site(tmp_path, "b", 16)
    keys = {"stream": True, "size": 16} if streamed else {}
    samples = clients(tmp_path, levels=levels, **keys)[:]
    np.testing.assert_allclose(samples[:3].astype(int), samples[3:].astype(int), atol=1)
    assert samples.max() == 255
    dark = clients(tmp_path)[:3]
    assert dark.max() < 20


def test_the_check_shows_sites_of_other_bits_as_the_run_sees_them(tmp_path, caplog):
    site(tmp_path / "data", "a", 12)
    site(tmp_path / "data", "b", 16)
    levels = {"auto": "auto", "both": {"a": (0, 4095), "b": (0, 65535)}, "plain": None}
    for name, given in levels.items():
        out = tmp_path / name
        out.mkdir()
        config = ClientFolders.Config(path=str(tmp_path / "data"), mode="L", levels=given)
        tally = check_data(ClientFolders(config), out).halves["train"].tally
        assert tally.dark == (0 if given else 3)
        sheet = np.asarray(Image.open(out / "contact_sheet.png"))
        pictures = [sheet[24:120, 6 + 102 * k : 102 * (k + 1)].astype(int) for k in range(6)]
        alike = np.abs(pictures[0] - pictures[3]).max() < 3
        assert alike == (given is not None)
    clients(tmp_path / "data")
    assert tally.lighter.startswith("auto")
    assert "come out dark; if they have 12 bits, set data.levels=auto" in caplog.text


def test_measured_levels_are_told_once_and_given_ones_are_not(tmp_path, caplog):
    site(tmp_path, "a", 12)
    site(tmp_path, "b", 16)
    clients(tmp_path, levels={"a": (0, 4095), "b": (0, 65535)})
    assert "data.levels" not in caplog.text
    data = ClientFolders(ClientFolders.Config(path=str(tmp_path), mode="L", levels="auto"))
    data.arrays()
    data.as_shown(data.open_half("train"))
    (message,) = (told for told in caplog.messages if "data.levels" in told)
    assert "a 0 to 4095, b 0 to 65535" in message


def test_levels_of_a_site_that_is_not_there(tmp_path):
    site(tmp_path, "a", 12)
    with pytest.raises(DataError, match=r"data\.levels\.c: there is no such client; there are a\."):
        clients(tmp_path, levels={"c": (0, 1)})


def test_a_new_site_is_measured_when_it_is_predicted(tmp_path):
    site(tmp_path, "a", 10)
    trained = as_trained({"levels": "auto"})
    fitting = Fitting((1, 16, 16), images=True, mode="L", **trained)
    stream = open_samples(tmp_path, fitting, 4)
    assert next(stream.batches).samples.max() == 255
    other = Fitting((1, 16, 16), images=True, mode="L", **trained)
    with pytest.raises(DataError, match="the run had levels for each site"):
        other.readable([encoded(RAMP)], ["x"])


@pytest.mark.parametrize("kind", ["ClientFolders", "ImageFolder"])
def test_folders_that_are_predicted_have_levels_of_their_own_if_they_were_sites(
    tmp_path, caplog, kind
):
    site(tmp_path, "a", 12)
    site(tmp_path, "b", 16)
    trained = as_trained({"levels": "auto", "target": f"coterie.datamodules.folders:{kind}"})
    stream = open_samples(tmp_path, Fitting((1, 16, 16), images=True, mode="L", **trained), 4)
    found = np.concatenate([batch.samples for batch in stream.batches])
    if kind == "ClientFolders":
        assert np.array_equal(found, clients(tmp_path, levels="auto")[:])
        assert "auto reads black to white as a 0 to 4095, b 0 to 65535." in caplog.text
    else:
        assert (found[:3].max(), found[3:].max()) == (16, 255)
        assert "3 of 6 pictures of more than 8 bits have no level above 4095" in caplog.text
        assert "come out dark; if they have 12 bits, give them as a separate client" in caplog.text


def test_measured_levels_of_other_numbers():
    floats = encoded(np.linspace(-3, 5, 256, dtype=np.float32).reshape(16, 16), "TIFF")
    assert measured_levels([floats, b"junk"], ["x", "y"], PixelFormat(), "") == (-3, 5)
    assert measured_levels([encoded(RAMP)], ["x"], PixelFormat(), "") is None


def test_an_opaque_picture_with_an_alpha_channel_is_not_transparent(tmp_path, caplog):
    pixels = np.random.default_rng(0).integers(0, 255, (3, 20, 20, 4), dtype=np.uint8)
    pixels[..., 3] = 255
    for number, each in enumerate(pixels):
        (tmp_path / f"{number}.png").write_bytes(encoded(each))
    with caplog.at_level(logging.WARNING):
        samples = images(tmp_path, mode="RGB").samples
    np.testing.assert_array_equal(samples, pixels[..., :3].transpose(0, 3, 1, 2))
    assert "transparent" not in caplog.text
    data = ImageFolder(ImageFolder.Config(path=str(tmp_path)))
    assert not check_data(data, tmp_path).halves["train"].tally.grounds


def test_a_refusal_of_several_names_the_keys_that_would_read_them(tmp_path):
    frames = [Image.new("RGB", (8, 8), (n, 0, 0)) for n in (0, 99)]
    frames[0].save(tmp_path / "film.gif", save_all=True, append_images=frames[1:])
    Image.new("L", (400, 400)).save(tmp_path / "large.png")
    (tmp_path / "empty.png").write_bytes(b"")
    Image.new("L", (8, 8)).save(tmp_path / "good.png")
    with pytest.raises(DataError, match=r"^3 of 4 pictures") as caught:
        images(tmp_path, max_pixels=10_000)
    told = str(caught.value)
    assert "data.frame" in told
    assert "data.max_pixels" in told
    assert "repair them or take them out" in told


@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
@pytest.mark.parametrize("bands", [2, 3, 5, 10])
@pytest.mark.parametrize("mode", ["RGB", "all"])
def test_no_band_of_a_grey_tiff_is_dropped(mode, bands, kind, compression):
    """Band after band, as geographers write them; Pillow would give the first."""
    values = np.random.default_rng(0).integers(0, 256, (bands, 9, 7)).astype(kind)
    file = io.BytesIO()
    keys = {"photometric": "minisblack", "planarconfig": "separate", "compression": compression}
    tifffile.imwrite(file, values, **keys)
    levels = None if kind == np.uint8 else (0.0, 255.0)
    found = decode(file.getvalue(), "x.tif", PixelFormat(mode=mode, levels=levels)).pixels
    np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize("mode", ["RGB", "all"])
def test_channels_beside_colours_are_kept_if_all_are_asked_for(mode):
    values = np.random.default_rng(0).integers(0, 256, (9, 7, 5), dtype=np.uint8)
    file = io.BytesIO()
    tifffile.imwrite(file, values, photometric="rgb", planarconfig="contig")
    found = decode(file.getvalue(), "x.tif", PixelFormat(mode=mode)).pixels
    kept = values if mode == "all" else values[..., :3]
    np.testing.assert_array_equal(found, kept.transpose(2, 0, 1))
