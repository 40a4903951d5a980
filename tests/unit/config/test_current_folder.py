"""The current folder is searched for the classes that a config names: last, and only for them."""

import sys

import pytest

from coterie.config.component import load_target
from coterie.errors import ConfigError


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    return tmp_path


def test_a_class_there_is_found_and_the_folder_comes_last(here):
    (here / "only_here.py").write_text("class Own:\n    pass\n")
    assert load_target("only_here:Own").__module__ == "only_here"
    assert sys.path[-1] == str(here)


@pytest.mark.parametrize("target", ["nowhere:Own", "json:Own", "json.nowhere:Own"])
def test_what_is_not_there_leaves_the_path_as_it_was(target):
    before = [*sys.path]
    with pytest.raises(ConfigError):
        load_target(target)
    assert sys.path == before


def test_a_folder_that_is_gone_is_not_searched(here):
    here.rmdir()
    with pytest.raises(ConfigError, match="no module 'nowhere'"):
        load_target("nowhere:Own")
