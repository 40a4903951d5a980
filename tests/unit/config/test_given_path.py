"""Paths with `~`, also of users who do not exist or have no home."""

import importlib
from pathlib import Path

import pytest

from coterie.config import given_path as module
from coterie.config.given_path import given_path, home
from coterie.errors import ConfigError


def test_the_home_folder_is_filled_in(monkeypatch):
    monkeypatch.setenv("HOME", "/somewhere")
    assert given_path("run_dir", "~/a b") == Path("/somewhere/a b")
    assert given_path("run_dir", "a/~b") == Path("a/~b")


def test_a_name_that_no_file_can_have_is_refused():
    with pytest.raises(
        ConfigError, match=r"^run=a+…: the name is too long for a file; give another"
    ):
        given_path("run", "a" * 5000)


@pytest.mark.parametrize("given", ["~nosuchuser/x", "~nosuchuser"])
def test_a_user_without_a_home_is_named(given):
    with pytest.raises(ConfigError, match=f"^out={given}: no home folder is known for ~nosuchuser"):
        given_path("out", given)


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("train", "experiment=kmeans data=image_folder data.path=~nosuchuser/x"),
        ("train", "experiment=kmeans_digits run_dir=~nosuchuser/x"),
        ("train", "experiment=kmeans_mnist data.root=~nosuchuser/x"),
        ("train", "experiment=kmeans_digits encoder=pretrained encoder.path=~nosuchuser/x"),
        ("train", "resume=true run_dir=~nosuchuser/x"),
        ("compare", "experiments=[kmeans_digits] out=~nosuchuser/x"),
        ("check_data", "data=npz data.path=~nosuchuser/x"),
        ("predict", "model=~nosuchuser/x input=x"),
        ("evaluate", "run=~nosuchuser/x"),
        ("report", "run=~nosuchuser/x"),
    ],
)
def test_every_command_names_a_user_without_a_home(command, arguments, capsys):
    main = importlib.import_module(f"coterie.jobs.{command}").main
    assert main(arguments.split()) == 2
    told = capsys.readouterr().err
    assert "=~nosuchuser/x: no home folder is known for ~nosuchuser; give the path" in told
    assert told.count("\n") == 1


def test_a_number_without_a_name_has_no_home(monkeypatch):
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(module.Path, "expanduser", lambda path: path.__class__.home())
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as for a uid without an entry
    assert home() is None
    with pytest.raises(ConfigError, match="known for ~;"):
        given_path("data.path", "~/pictures")
