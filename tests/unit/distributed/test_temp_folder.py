"""Ray's sockets lie in a folder that is there, writable and short."""

from pathlib import Path

import pytest

from coterie.distributed import temp_folder as module
from coterie.distributed.temp_folder import temp_folder
from coterie.errors import ConfigError


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    for name in ("RAY_TMPDIR", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)


def test_ones_own_folder_is_taken(monkeypatch):
    monkeypatch.setenv("TMPDIR", "/var/tmp")
    assert temp_folder() == Path("/var/tmp")
    monkeypatch.setenv("RAY_TMPDIR", "/dev/shm")
    assert temp_folder() == Path("/dev/shm")


@pytest.mark.parametrize("given", ["/no/such/folder", "", "x" * 79])
def test_another_is_taken_where_ones_own_cannot_be(monkeypatch, tmp_path, given):
    folder = tmp_path / given
    if given.startswith("x"):
        folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder) if given else "")
    assert temp_folder() == Path("/tmp")


def test_a_relative_folder_counts_in_full(monkeypatch, tmp_path):
    (tmp_path / ("y" * 60) / "t").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / ("y" * 60))
    monkeypatch.setenv("TMPDIR", "t")
    assert temp_folder() == Path("/tmp")


def test_without_any_the_variable_is_named(monkeypatch):
    monkeypatch.setenv("TMPDIR", "/no/such")
    monkeypatch.setattr(module, "_USUAL", ("/nor/this",))
    with pytest.raises(ConfigError, match="none of /no/such, /nor/this is one"):
        temp_folder()
