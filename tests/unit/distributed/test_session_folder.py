"""Folders for Ray: removed afterwards, and those of killed processes at the next start."""

import os
import signal
import tempfile
import time
from pathlib import Path

import pytest

from coterie.distributed import session_folder
from coterie.distributed.session_folder import working_folder


@pytest.fixture
def place(monkeypatch):
    """A temporary folder short enough for Ray."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        yield Path(folder)


def test_it_is_there_for_a_while(place):
    with working_folder() as folder:
        (folder / "search").mkdir()
        with working_folder() as other:  # which leaves alone what is in use
            assert {folder, other} == set(place.iterdir())
    assert not [*place.iterdir()]


def test_that_of_a_killed_process_is_removed_by_the_next(place, monkeypatch):
    process = os.fork()
    if not process:
        with working_folder() as folder:
            (folder / "search").mkdir()
            (place / "ready").touch()
            time.sleep(60)
    while not (place / "ready").exists():
        time.sleep(0.01)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    assert len([*place.glob("coterie-*")]) == 1
    monkeypatch.setattr(session_folder, "_NEW_S", 0.0)
    with working_folder() as folder:
        assert [*place.glob("coterie-*")] == [folder]
