"""Searching folders: loops of links end, other files are counted and told."""

import os

import pytest
from PIL import Image

from coterie.datamodules.folders import ClassFolders
from coterie.datamodules.picture_search import PictureSearch
from coterie.errors import DataError


def picture(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (4, 4)).save(path)
    return path


def test_loops_of_links_end_and_nothing_is_found_twice(tmp_path):
    one, two = picture(tmp_path / "a" / "1.png"), picture(tmp_path / "a" / "b" / "2.png")
    (tmp_path / "a" / "b" / "up").symlink_to(tmp_path)
    (tmp_path / "a" / "again").symlink_to(tmp_path / "a" / "b")
    (tmp_path / "a" / "self").symlink_to(tmp_path / "a" / "self")
    found = PictureSearch().find(tmp_path)
    assert sorted(path.resolve() for path in found) == [one, two]


def test_a_linked_folder_is_searched(tmp_path):
    picture(tmp_path / "elsewhere" / "1.png")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "link").symlink_to(tmp_path / "elsewhere")
    assert PictureSearch().find(tmp_path / "here") == [tmp_path / "here" / "link" / "1.png"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may list all folders")
def test_a_folder_that_cannot_be_listed_is_named(tmp_path):
    picture(tmp_path / "1.png")
    (tmp_path / "closed").mkdir(mode=0)
    with pytest.raises(DataError, match=r"closed: it cannot be listed \(Permission denied\)"):
        PictureSearch().find(tmp_path)


def test_other_files_are_counted_and_told_once(tmp_path, caplog):
    for name in ("cat/1.png", "cat/2.psd", "dog/3.PNG", "dog/4.PSD", "dog/notes", "5.png"):
        path = picture(tmp_path / "x.png")
        path = path.rename(tmp_path / "y")
        (tmp_path / name).parent.mkdir(exist_ok=True)
        path.rename(tmp_path / name)
    data = ClassFolders(ClassFolders.Config(path=str(tmp_path))).arrays()
    assert len(data.samples) == 2
    assert caplog.messages[0] == (
        f"{tmp_path}: 4 files are not pictures by their extension or place, and are left out "
        "(2 .psd, 1 picture, 1 without extension)."
    )
    caplog.clear()
    for name in ("cat/2.psd", "dog/4.PSD", "dog/notes"):
        (tmp_path / name).unlink()
    ClassFolders(ClassFolders.Config(path=str(tmp_path))).arrays()
    assert caplog.messages[0] == (
        f"{tmp_path}: 1 file is not a picture by its extension or place, and is left out "
        "(1 picture)."
    )
    for name in ("dog/4.PSD", "dog/notes"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "dog" / "3.PNG").unlink()
    with pytest.raises(DataError, match=r"in it, but 1 \.psd, 1 without extension; convert them"):
        ClassFolders(ClassFolders.Config(path=str(tmp_path))).arrays()
