"""Files that are written whole or not at all, and by nobody else."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from coterie.tracking.atomic import is_half, replacing, write_text_atomically


def temporary(path):
    (folder,) = filter(is_half, path.parent.iterdir())
    return folder


def test_nobody_else_can_enter_where_it_is_written(tmp_path):
    path = tmp_path / "a.txt"
    with replacing(path) as held:
        assert temporary(path).stat().st_mode & 0o777 == 0o700
        held.write_text("whole")
    assert path.read_text() == "whole"
    assert path.stat().st_mode & 0o600 == 0o600
    assert [*tmp_path.iterdir()] == [path]


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
    assert not [*filter(is_half, tmp_path.iterdir())]


@pytest.mark.parametrize("moved", ["run/.a.txt.tmp", "run"])
def test_a_folder_that_is_led_elsewhere_meanwhile_leads_nothing_there(moved, tmp_path):
    """As the owner of the folder may do with all that is in it."""
    path, private = tmp_path / "run" / "a.txt", tmp_path / "private"
    private.mkdir()
    (private / "a.txt").write_text("kept")
    with replacing(path) as held:
        folder = path.parent if moved == "run" else temporary(path)
        folder.rename(tmp_path / "moved")
        folder.symlink_to(private)
        held.write_text("mine")
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
    with pytest.raises(OSError, match="not a regular file"):
        write_text_atomically(path, "mine")
    assert not path.is_file()
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("when", ["as it is made", "as it is written"])
def test_a_private_folder_that_is_put_in_its_place_keeps_its_files(tmp_path, monkeypatch, when):
    """Whoever owns the parent may rename what lies in it, also folders that they cannot enter."""
    path, backup, mkdir = tmp_path / "a.txt", tmp_path / "backup", os.mkdir
    backup.mkdir(mode=0o700)
    (backup / "a.txt").write_text("kept")

    def swap():
        folder = temporary(path)
        folder.rename(tmp_path / "away")
        backup.rename(folder)
        return folder

    def made(name, mode, *, dir_fd=None):
        mkdir(name, mode, dir_fd=dir_fd)
        swap()

    if when == "as it is made":
        monkeypatch.setattr(os, "mkdir", made)
        with pytest.raises(OSError, match="another user has replaced"):
            write_text_atomically(path, "mine")
        folder = temporary(path)
    else:
        with replacing(path) as held:
            folder = swap()
            held.write_text("mine")
        assert path.read_text() == "mine"
    assert (folder / "a.txt").read_text() == "kept"


def test_threads_that_write_one_file_leave_one_of_theirs(tmp_path):
    path, texts = tmp_path / "a.txt", [str(n) * 1000 for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda text: write_text_atomically(path, text), texts * 20))
    assert path.read_text() in texts
    assert [*tmp_path.iterdir()] == [path]


def test_a_name_may_be_as_long_as_the_system_takes(tmp_path):
    path = tmp_path / ("n" * 255)
    write_text_atomically(path, "mine")
    assert path.read_text() == "mine"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
def test_without_proc_another_users_folder_is_not_written_to(tmp_path, monkeypatch):
    exists = Path.is_dir
    monkeypatch.setattr(Path, "is_dir", lambda own: "/proc" not in str(own) and exists(own))
    write_text_atomically(tmp_path / "a.txt", "mine")
    os.chown(tmp_path, 65534, 65534)
    with pytest.raises(OSError, match="not safe without /proc"):
        write_text_atomically(tmp_path / "b.txt", "mine")


def test_a_full_disk_leaves_no_folder(tmp_path, monkeypatch):
    opened = os.open

    def full(path, flags, *rest, **keys):
        if flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened(path, flags, *rest, **keys)

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(OSError, match="No space left"):
        write_text_atomically(tmp_path / "a.txt", "mine")
    assert not [*tmp_path.iterdir()]
