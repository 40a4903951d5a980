"""Paths with `~`, also of users who do not exist or have no home."""

from pathlib import Path

import pytest

from coterie.config import given_path as module
from coterie.config.given_path import given_path, home
from coterie.errors import ConfigError


def test_the_home_folder_is_filled_in(monkeypatch):
    monkeypatch.setenv("HOME", "/somewhere")
    assert given_path("run_dir", "~/a b") == Path("/somewhere/a b")
    assert given_path("run_dir", "a/~b") == Path("a/~b")


@pytest.mark.parametrize("given", ["~nosuchuser/x", "~nosuchuser"])
def test_a_user_without_a_home_is_named(given):
    with pytest.raises(ConfigError, match=f"^out={given}: no home folder is known for ~nosuchuser"):
        given_path("out", given)


def test_a_number_without_a_name_has_no_home(monkeypatch):
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(module.Path, "expanduser", lambda path: path.__class__.home())
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as for a uid without an entry
    assert home() is None
    with pytest.raises(ConfigError, match="known for ~;"):
        given_path("data.path", "~/pictures")
