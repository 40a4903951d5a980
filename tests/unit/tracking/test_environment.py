"""What is noted of the software and the device."""

import re
import subprocess

import torch

from coterie.execution.device import device_name
from coterie.tracking.environment import ENVIRONMENT_KEYS, commit, environment
from coterie.version import __version__


def git(folder, *arguments):
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(("git", *who, *arguments), cwd=folder, check=True, capture_output=True)


def test_the_commit_is_that_of_the_codes_own_tree(tmp_path):
    own, installed = tmp_path / "platform" / "own.py", tmp_path / "installed.py"
    own.parent.mkdir()
    own.touch()
    installed.touch()
    asked = commit.__wrapped__
    assert asked(own) == __version__
    git(tmp_path, "init")
    git(tmp_path, "add", "platform")
    git(tmp_path, "commit", "-m", "one")
    assert re.fullmatch("[0-9a-f]{10}", asked(own))
    assert asked(installed) == __version__
    own.write_text("x")
    assert re.fullmatch("[0-9a-f]{10}-dirty", asked(own))


def test_a_process_keeps_the_commit_with_which_it_began(tmp_path):
    source = tmp_path / "own.py"
    source.touch()
    assert commit(source) == __version__
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "one")
    assert commit(source) == __version__


def test_the_versions_are_those_that_are_installed():
    assert tuple(environment()) == ENVIRONMENT_KEYS
    assert torch.__version__.startswith(environment()["packages"]["torch"])


def test_the_device_is_named():
    device = device_name(torch.device("cpu"))
    assert " cores of " in device
