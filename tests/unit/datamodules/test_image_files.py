"""Decoding pictures: modes, 16 bits, transparency, sizes, and pictures that cannot be read."""

import io
import logging

import numpy as np
import pytest
from PIL import Image

from coterie.datamodules.decoding import PixelFormat
from coterie.datamodules.image_files import decode_images, read_images
from coterie.datamodules.picture_search import PictureSearch
from coterie.datamodules.resize import resize_images
from coterie.errors import DataError


def pixels(*shape, dtype=np.uint8, most=256):
    return np.random.default_rng(3).integers(0, most, shape, dtype)


def encoded(image, form="PNG", **options):
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def png(array):
    return encoded(Image.fromarray(array))


def read(*pictures, mode="RGB", size=None):
    names = [f"picture {number}" for number in range(len(pictures))]
    pixel_format = PixelFormat(mode=mode, size=size)
    decode_images(pictures, names, pixel_format).tally.warn(pixel_format)
    return read_images(pictures, names, pixel_format)


def test_files_and_bytes_keep_their_order_across_threads(tmp_path):
    wanted = pixels(200, 5, 4, 3)
    pictures = []
    for number, image in enumerate(wanted):
        path = tmp_path / f"{number}.png"
        path.write_bytes(png(image))
        pictures.append(path if number % 2 else path.read_bytes())
    images = read(*pictures)
    assert images.flags.c_contiguous
    np.testing.assert_array_equal(images, wanted.transpose(0, 3, 1, 2))


def test_sixteen_bits_are_scaled_not_clipped(tmp_path):
    levels = np.array([[0, 128, 129, 257], [32768, 40000, 65407, 65535]], dtype=np.uint16)
    wanted = np.rint(levels / 257).astype(np.uint8)
    assert wanted.tolist() == [[0, 0, 1, 1], [128, 156, 255, 255]]
    path = tmp_path / "big.tif"
    Image.fromarray(levels.astype(">u2")).save(path)
    for picture in (png(levels), encoded(Image.fromarray(levels), "TIFF"), path):
        np.testing.assert_array_equal(read(picture, mode="L")[0, 0], wanted)
        np.testing.assert_array_equal(read(picture, mode="RGB")[0, 1], wanted)


@pytest.mark.parametrize(
    ("level", "kind"), [(-1, np.int32), (65536, np.int32), (np.nan, np.float32)]
)
def test_levels_without_a_range_are_refused(level, kind):
    picture = encoded(Image.fromarray(np.full((2, 2), level, dtype=kind)), "TIFF")
    with pytest.raises(DataError, match=r"picture 0 is .* save it with 8 or 16 bits"):
        read(picture, mode="L")


def test_transparency_becomes_black_with_one_warning(caplog):
    half = np.full((2, 2, 4), 200, np.uint8)
    half[..., 3] = [[0, 255], [51, 102]]
    wanted = [[0, 200], [40, 80]]
    grey = Image.fromarray(half[..., 2:])
    palette = Image.fromarray(np.array([[0, 1], [1, 1]], np.uint8), "P")
    palette.putpalette([250, 250, 250, 10, 20, 30])
    pictures = [
        png(half),
        encoded(grey),
        encoded(palette, transparency=0),
        png(np.full((2, 2, 3), 7, np.uint8)),
        encoded(Image.new("CMYK", (2, 2), (255, 0, 0, 0)), "TIFF"),
    ]
    with caplog.at_level(logging.WARNING):
        images = read(*pictures)
    assert images[0].tolist() == images[1].tolist() == [wanted] * 3
    assert images[2, 0].tolist() == [[0, 10], [10, 10]]
    assert images[3].max() == images[3].min() == 7
    assert images[4, :, 0, 0].tolist() == [0, 255, 255]
    assert caplog.messages == [
        "4 of 5 pictures were converted to RGB (1 from RGBA, 1 from LA, 1 from P with a "
        "transparent colour, 1 from CMYK); transparent pixels become black."
    ]
    np.testing.assert_array_equal(read(pictures[1], mode="L")[0, 0], wanted)


def test_sixteen_bits_with_a_transparent_level_are_scaled_too(caplog):
    levels = np.array([[0, 257, 1000], [32768, 40000, 65535]], dtype=np.uint16)
    picture = encoded(Image.fromarray(levels), transparency=40000)
    with Image.open(io.BytesIO(picture)) as image:
        assert image.mode.startswith("I")
        assert image.info["transparency"] == 40000
    wanted = [[0, 1, 4], [128, 0, 255]]
    assert read(picture)[0].tolist() == [wanted] * 3
    assert read(picture, mode="L")[0, 0].tolist() == wanted
    assert all(
        message.endswith("; transparent pixels become black.") for message in caplog.messages
    )
    assert len(caplog.messages) == 2


def test_no_warning_where_nothing_is_converted(caplog):
    read(png(pixels(4, 4, 3)))
    read(png(pixels(4, 4)), mode="L")
    assert caplog.messages == []


def test_one_picture_is_resized_like_a_whole_array():
    wanted = pixels(3, 1, 9, 12)
    one = read(*(png(image[0]) for image in wanted), mode="L", size=(4, 6))
    np.testing.assert_array_equal(one, resize_images(wanted, (4, 6)))
    mixed = read(png(pixels(9, 12)), png(pixels(30, 8)), mode="L", size=5)
    assert mixed.shape == (2, 1, 5, 5)
    np.testing.assert_array_equal(mixed[1:], resize_images(pixels(1, 1, 30, 8), 5))


def test_mixed_sizes_name_two_pictures_and_the_remedy():
    with pytest.raises(DataError) as refusal:
        read(png(pixels(4, 6)), png(pixels(4, 6)), png(pixels(5, 6)), mode="L")
    assert str(refusal.value) == (
        "picture 0 has 4×6 pixels, but picture 2 has 5×6; set data.size to resize all pictures to "
        "one size."
    )


def test_unreadable_pictures_are_named(tmp_path):
    whole = {
        "PNG": png(pixels(40, 40, 3)),
        "JPEG": encoded(Image.fromarray(pixels(40, 40, 3)), "JPEG"),
        "WEBP": encoded(Image.fromarray(pixels(40, 40, 3)), "WEBP"),
        "TIFF": encoded(Image.fromarray(pixels(40, 40, 3)), "TIFF"),
        "BMP": encoded(Image.fromarray(pixels(40, 40, 3)), "BMP"),
    }
    for content in whole.values():
        for length in (1, 9, len(content) // 2):
            with pytest.raises(
                DataError,
                match=r"^picture 1 is (not a readable picture|a picture that cannot be read)",
            ) as refusal:
                read(content, content[:length])
            assert str(refusal.value).endswith("; fetch it again, or take it out.")
            assert "object at" not in str(refusal.value)
    with pytest.raises(DataError, match=r"^picture 1 is empty \(0 bytes\); fetch"):
        read(whole["PNG"], b"")
    with pytest.raises(DataError, match=r"^picture 0: there is no such file; put it there"):
        read(tmp_path / "gone.png")
    for nothing in (b"P5 0 4 255\n", b"P6\n4 0\n255\n"):
        with pytest.raises(DataError, match=r"^picture 0 is .*picture.*; fetch it again"):
            read(nothing)


def test_images_are_found_by_extension_sorted_without_hidden_ones(tmp_path):
    for name in ("b.png", "a.JPG", "c/d.webp", ".hidden.png", ".git/e.png", "notes.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    names = [path.relative_to(tmp_path).as_posix() for path in PictureSearch().find(tmp_path)]
    assert names == ["a.JPG", "b.png", "c/d.webp"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty: there are no pictures \(\.jpg, .* in it; put"):
        PictureSearch().find(tmp_path / "empty")
    with pytest.raises(DataError, match=r"gone: there is no such folder; set data\.path"):
        PictureSearch().find(tmp_path / "gone")
