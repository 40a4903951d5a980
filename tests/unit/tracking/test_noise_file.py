"""The file of a private run's noise: secret, durable, and refused if it is missing."""

import json
import os
import resource
import stat

import pytest

from coterie.aggregation.noise import Spent
from coterie.errors import ConfigError
from coterie.tracking.noise_file import SECRET_VARIABLE, NoiseFile

SALTS = ('{"salt": "00"}\n', '{"salt": 7}\n')
KEY = json.dumps({"salt": "0f" * 32, "check": "0f" * 32}) + "\n"
ODD = '{"round": 1, "step": 0, "tag": "ab", "clients": ["x"]}'
ONE, TWO = Spent(1, 0, "ab", (0, 3)), Spent(2, 1, "cd", ())


def test_the_key_is_new_secret_and_kept(tmp_path):
    file = NoiseFile(tmp_path / "noise.jsonl")
    key, spent = file.open(begun=False)
    assert (len(key), spent) == (32, [])
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    file.append(ONE)
    file.append(TWO)
    assert file.open(begun=True) == (key, [ONE, TWO])
    assert NoiseFile(tmp_path / "other.jsonl").open(begun=False)[0] != key
    assert key.hex() not in repr(file)
    assert key.hex() not in file.path.read_text()


def test_a_sum_that_a_full_disk_cuts_off_is_not_released(tmp_path):
    file = NoiseFile(tmp_path / "noise.jsonl")
    key, _ = file.open(begun=False)
    file.append(ONE)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:  # as a full disk does, it lets a part of the line through
        room = file.path.stat().st_size + 10
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
        with pytest.raises(OSError, match="File too large"):
            file.append(TWO)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert file.path.stat().st_size == room
    assert file.open(begun=True) == (key, [ONE])
    file.append(TWO)
    assert file.open(begun=True) == (key, [ONE, TWO])


def test_a_copy_by_hard_links_spends_for_itself_alone(tmp_path):
    file, copy = NoiseFile(tmp_path / "noise.jsonl"), NoiseFile(tmp_path / "copy.jsonl")
    key, _ = file.open(begun=False)
    file.append(ONE)
    copy.path.hardlink_to(file.path)
    copy.open(begun=True)
    copy.append(TWO)
    assert file.open(begun=True) == (key, [ONE])
    assert copy.open(begun=True) == (key, [ONE, TWO])
    assert stat.S_IMODE(copy.path.stat().st_mode) == 0o600


def test_a_strangers_key_hides_nothing_and_is_refused(tmp_path, monkeypatch):
    file = NoiseFile(tmp_path / "noise.jsonl")
    monkeypatch.setenv(SECRET_VARIABLE, str(tmp_path / "strangers"))
    key, _ = file.open(begun=False)
    whole = file.path.read_text()
    monkeypatch.setenv(SECRET_VARIABLE, str(tmp_path / "own"))
    for begun in (True, False):
        with pytest.raises(ConfigError, match="the run's noise key is not from your secret"):
            file.open(begun=begun)
    file.path.write_text(json.dumps({"salt": "0f" * 32, "check": "ä"}) + "\n")
    with pytest.raises(ConfigError, match="the run's noise key is not from your secret"):
        file.open(begun=True)
    file.path.write_text(whole)
    monkeypatch.setenv(SECRET_VARIABLE, str(tmp_path / "strangers"))
    assert file.open(begun=True) == (key, [])


@pytest.mark.parametrize("damage", ["short", "open", "folder", "pipe"])
def test_a_secret_that_is_none_is_refused(tmp_path, monkeypatch, damage):
    secret = tmp_path / "secret"
    monkeypatch.setenv(SECRET_VARIABLE, str(secret))
    if damage == "folder":
        secret.mkdir()
    elif damage == "pipe":  # which nobody writes into
        os.mkfifo(secret, 0o600)
    else:
        secret.write_bytes(b"x" * (3 if damage == "short" else 32))
        secret.chmod(0o600 if damage == "short" else 0o644)
    with pytest.raises(ConfigError, match="the secret of your private runs' noise"):
        NoiseFile(tmp_path / "noise.jsonl").open(begun=False)
    assert not (tmp_path / "noise.jsonl").exists()


def test_a_line_that_was_not_finished_was_not_released(tmp_path):
    file = NoiseFile(tmp_path / "noise.jsonl")
    key, _ = file.open(begun=False)
    file.append(ONE)
    with file.path.open("a") as stream:
        stream.write('{"round": 2, "st')
    assert file.open(begun=True) == (key, [ONE])
    file.append(TWO)
    assert file.open(begun=True) == (key, [ONE, TWO])


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "{}\n",
        "[]\n",
        *SALTS,
        f"{KEY}{{}}\n",
        f"{KEY}{ODD}\n",
        "\x00\n",
        "[" * 200_000 + "\n",
    ],
)
def test_a_missing_or_damaged_file_is_refused(text, tmp_path):
    file = NoiseFile(tmp_path / "noise.jsonl")
    if text is not None:
        file.path.write_text(text)
    with pytest.raises(ConfigError, match="the run's noise and what it has spent cannot be read"):
        file.open(begun=True)


def test_a_file_that_lacks_sums_is_refused(tmp_path):
    file = NoiseFile(tmp_path / "noise.jsonl")
    file.open(begun=False)
    file.append(ONE)
    assert file.open(begun=True, released=1)[1] == [ONE]
    with pytest.raises(ConfigError, match="it has 1 sums, but the run has released 2"):
        file.open(begun=True, released=2)


def test_without_a_home_the_variable_is_named(tmp_path, monkeypatch):
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)

    def nowhere(path):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("pathlib.Path.expanduser", nowhere)
    with pytest.raises(ConfigError, match=f"^{SECRET_VARIABLE}=~/.coterie/noise_secret: no home"):
        NoiseFile(tmp_path / "noise.jsonl").open(begun=False)
