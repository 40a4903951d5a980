"""Files that are written whole or not at all, and by nobody else."""

import os

import pytest

from coterie.tracking.atomic import replacing, temporary_name, write_text_atomically


def test_nobody_else_can_enter_where_it_is_written(tmp_path):
    path = tmp_path / "a.txt"
    with replacing(path) as temporary:
        assert temporary_name(path).stat().st_mode & 0o777 == 0o700
        temporary.write_text("whole")
    assert path.read_text() == "whole"
    assert path.stat().st_mode & 0o600 == 0o600
    assert [*tmp_path.iterdir()] == [path]


def test_a_link_that_stands_there_is_not_followed(tmp_path):
    path, other = tmp_path / "a.txt", tmp_path / "other"
    other.write_text("kept")
    temporary_name(path).symlink_to(other)
    write_text_atomically(path, "mine")
    assert (path.read_text(), other.read_text()) == ("mine", "kept")


@pytest.mark.parametrize("planted", ["link", "pipe"])
def test_what_is_put_in_its_place_meanwhile_does_not_become_the_file(planted, tmp_path):
    path, other = tmp_path / "a.txt", tmp_path / "other"
    other.write_text("kept")
    other.chmod(0o600)
    with pytest.raises(OSError), replacing(path) as temporary:  # noqa: PT011, PT012
        temporary.unlink()
        os.mkfifo(temporary) if planted == "pipe" else temporary.symlink_to(other)
    assert not path.exists()
    assert (other.read_text(), other.stat().st_mode & 0o777) == ("kept", 0o600)
    assert not temporary_name(path).is_symlink()


@pytest.mark.parametrize("moved", ["run/.a.txt.tmp", "run"])
def test_a_folder_that_is_led_elsewhere_meanwhile_leads_nothing_there(moved, tmp_path):
    """As the owner of the folder may do with all that is in it."""
    path, private = tmp_path / "run" / "a.txt", tmp_path / "private"
    private.mkdir()
    (private / "a.txt").write_text("kept")
    with replacing(path) as temporary:
        folder = path.parent if moved == "run" else temporary_name(path)
        folder.rename(tmp_path / "moved")
        folder.symlink_to(private)
        temporary.write_text("mine")
    assert [*private.iterdir()] == [private / "a.txt"]
    assert (private / "a.txt").read_text() == "kept"
    assert (tmp_path / "moved" if moved == "run" else path.parent).joinpath(
        "a.txt"
    ).read_text() == ("mine")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
def test_what_another_user_has_put_in_its_folders_place_is_not_written_in(tmp_path, monkeypatch):
    path, mkdir = tmp_path / "a.txt", os.mkdir

    def planted(name, mode, *, dir_fd=None):
        mkdir(name, mode, dir_fd=dir_fd)
        os.chown(name, 65534, 65534, dir_fd=dir_fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", planted)
        with pytest.raises(OSError, match="another user"):
            write_text_atomically(path, "mine")
    assert not path.exists()


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_what_is_no_file_is_not_replaced(kind, tmp_path):
    path = tmp_path / "a"
    os.mkfifo(path) if kind == "pipe" else path.mkdir()
    with pytest.raises(OSError, match="no regular file"):
        write_text_atomically(path, "mine")
    assert not path.is_file()
    assert [*tmp_path.iterdir()] == [path]
