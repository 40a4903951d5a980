"""Ray's token is its owner's alone, with a home folder or without."""

import os

import pytest

from coterie.distributed.ray_token import keep_token


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_it_lies_in_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    keep_token()
    path = tmp_path / ".ray" / "auth_token"
    assert path.stat().st_mode & 0o777 == 0o600
    before = path.read_text()
    path.chmod(0o644)
    keep_token()
    assert (path.read_text(), path.stat().st_mode & 0o777) == (before, 0o600)
    assert "RAY_AUTH_TOKEN" not in os.environ


def test_without_a_home_it_is_in_the_environment(monkeypatch):
    monkeypatch.setenv("HOME", "/proc/nohome")
    keep_token()
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64
