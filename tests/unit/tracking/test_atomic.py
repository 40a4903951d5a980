"""Files that are written whole or not at all, and by nobody else."""

import os

import pytest

from coterie.tracking.atomic import replacing, temporary_name, write_text_atomically


def test_the_file_is_there_before_it_is_written(tmp_path):
    path = tmp_path / "a.txt"
    with replacing(path) as temporary:
        assert temporary.stat().st_mode & 0o777 == 0o600  # for nobody else, until it is whole
        temporary.write_text("whole")
    assert path.read_text() == "whole"
    assert path.stat().st_mode & 0o600 == 0o600


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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_another_users_file_does_not_become_the_file(tmp_path):
    path = tmp_path / "a.txt"
    with pytest.raises(OSError, match="another user"), replacing(path) as temporary:
        os.chown(temporary, 65534, 65534)
    assert not path.exists()
