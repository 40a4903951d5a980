"""The run directory: where it goes, what is refused, and that files are whole or absent."""

import os
import platform
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.errors import ConfigError
from coterie.tracking import paths, run_directory
from coterie.tracking.atomic import write_text_atomically
from coterie.tracking.claim import claimed, is_claimed
from coterie.tracking.metrics_log import MetricsLog
from coterie.tracking.paths import check_contained
from coterie.tracking.run_directory import RunDirectory


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COTERIE_RUNS", raising=False)


def one_sentence(refusal):
    text = str(refusal.value)
    assert text.endswith(".")
    assert "\n" not in text
    return text


def test_default_is_runs_experiment_and_utc_time(tmp_path):
    directory = RunDirectory.create(None, "digits", job=False)
    assert directory.path.parent == tmp_path / "runs" / "digits"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", directory.path.name)
    assert directory.path.is_dir()


class Noon(run_directory.datetime):
    """A clock that stands still."""

    @classmethod
    def now(cls, tz=None):
        return cls(2031, 2, 3, 12, 4, 5, tzinfo=run_directory.UTC).astimezone(tz)


def test_the_time_is_utc_whatever_the_time_zone(monkeypatch):
    monkeypatch.setattr(run_directory, "datetime", Noon)
    assert RunDirectory.create(None, "a", job=False).path.name == "2031-02-03_12-04-05"


def test_a_folder_that_others_can_enter_is_closed(tmp_path):
    for name, mode in (("unpacked", 0o777), ("shown", 0o750), ("new", None)):
        if mode is not None:
            (tmp_path / name).mkdir()
            (tmp_path / name).chmod(mode)
        paths.make_private(tmp_path / name)
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o700


def test_a_folder_that_has_become_a_link_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o755)
    (tmp_path / "checkpoints").symlink_to("elsewhere")
    with pytest.raises(OSError, match="it is a link, and a run writes in its own folder"):
        paths.make_private(tmp_path / "checkpoints")
    assert (tmp_path / "elsewhere").stat().st_mode & 0o777 == 0o755


def test_a_taken_second_gets_a_suffix(monkeypatch):
    monkeypatch.setattr(run_directory, "datetime", Noon)
    names = [RunDirectory.create(None, "a", job=False).path.name for _ in range(3)]
    now = "2031-02-03_12-04-05"
    assert names == [now, f"{now}-2", f"{now}-3"]


@pytest.mark.parametrize("job", [False, True])
def test_root_from_the_environment(tmp_path, monkeypatch, job):
    monkeypatch.setenv("COTERIE_RUNS", str(tmp_path / "elsewhere"))
    directory = RunDirectory.create(None, "a", job=job)
    assert directory.path.parent == tmp_path / "elsewhere" / "a"


def test_given_paths_and_uris(tmp_path):
    assert RunDirectory.create("here/x", "a", job=False).path == tmp_path / "here" / "x"
    uri = (tmp_path / "with space").as_uri()
    assert "%20" in uri
    assert RunDirectory.create(uri, "a", job=True).path == tmp_path / "with space"


def test_an_existing_empty_folder_is_taken(tmp_path):
    (tmp_path / "x").mkdir()
    assert RunDirectory.create("x", "a", job=False).path == tmp_path / "x"
    assert list((tmp_path / "x").iterdir()) == []


def test_a_folder_with_something_in_it_is_refused(tmp_path):
    write_text_atomically(tmp_path / "x" / "config.yaml", "seed: 0")
    with pytest.raises(ConfigError) as refusal:
        RunDirectory.create("x", "a", job=False)
    assert one_sentence(refusal).startswith("run_dir=x: the folder is not empty")
    assert "resume" in str(refusal.value)


def test_a_job_needs_an_absolute_place(monkeypatch):
    with pytest.raises(ConfigError) as refusal:
        RunDirectory.create("x", "a", job=True)
    assert one_sentence(refusal).startswith("run_dir=x:")
    assert not Path("x").exists()
    for root in (None, "relative"):
        if root:
            monkeypatch.setenv("COTERIE_RUNS", root)
        with pytest.raises(ConfigError, match="set COTERIE_RUNS") as refusal:
            RunDirectory.create(None, "a", job=True)
        one_sentence(refusal)
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize("run_dir", ["s3://bucket/run", "file://server/run"])
def test_remote_uris_are_refused(run_dir):
    with pytest.raises(ConfigError, match="mount") as refusal:
        RunDirectory.create(run_dir, "a", job=False)
    assert run_dir in one_sentence(refusal)


@pytest.mark.parametrize("experiment", ["", "..", "a/b", "/a", "a/"])
def test_an_experiment_that_is_no_folder_name_is_refused(experiment):
    with pytest.raises(ConfigError, match="plain name") as refusal:
        RunDirectory.create(None, experiment, job=False)
    one_sentence(refusal)
    assert list(Path.cwd().iterdir()) == []


def test_a_path_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    for run_dir in ("file", "file/run"):
        with pytest.raises(ConfigError, match="cannot write there") as refusal:
            RunDirectory.create(run_dir, "a", job=False)
        assert str(tmp_path / run_dir) in one_sentence(refusal)


def test_a_folder_without_permission_is_refused(tmp_path, monkeypatch):
    def deny(dir):  # noqa: A002 - as a folder does to everybody but the superuser
        raise PermissionError(13, "Permission denied", str(dir))

    monkeypatch.setattr(paths.tempfile, "TemporaryFile", deny)
    with pytest.raises(ConfigError, match=r"cannot write there \(Permission denied\)") as refusal:
        RunDirectory.create("locked", "a", job=False)
    assert f"run_dir={tmp_path / 'locked'}" in one_sentence(refusal)


def test_open_finds_an_earlier_run_and_nothing_else(tmp_path):
    made = RunDirectory.create("x", "a", job=False)
    with pytest.raises(ConfigError, match=r"no config\.yaml"):
        RunDirectory.open("x")
    made.write_config({"seed": 3})
    assert RunDirectory.open("x") == made


def test_paths_are_those_of_the_contract(tmp_path):
    directory = RunDirectory(tmp_path)
    names = ["config", "metrics", "summary", "checkpoints", "model", "assignments", "figures"]
    assert [getattr(directory, name).relative_to(tmp_path).as_posix() for name in names] == [
        "config.yaml",
        "metrics.jsonl",
        "summary.json",
        "checkpoints",
        "model",
        "assignments.parquet",
        "figures",
    ]


def test_config_comes_back_and_carries_the_versions(tmp_path):
    config = {"experiment": "é", "seed": 7, "method": {"lr": 1e-5, "sizes": [1, 2], "name": None}}
    directory = RunDirectory(tmp_path)
    directory.write_config(config)
    assert directory.read_config() == config
    written = yaml.safe_load(directory.config.read_text(encoding="utf-8"))
    assert written["seed"] == 7
    assert written["python"] == platform.python_version()
    assert written["platform"] == platform.platform()
    for package in ("torch", "lightning", "ray", "scikit-learn"):
        assert written["packages"][package] == metadata.version(package)
    assert isinstance(written["version"], str)


@settings(max_examples=20)  # each waits for the disk
@given(old=st.text(), new=st.text())
def test_atomic_write_leaves_just_the_text(tmp_path_factory, old, new):
    path = tmp_path_factory.mktemp("atomic") / "file"
    for text in (old, new):
        write_text_atomically(path, text.replace("\r", ""))
    assert path.read_bytes() == new.replace("\r", "").encode()
    assert list(path.parent.iterdir()) == [path]


def test_a_write_that_is_cut_short_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_text_atomically(path, "old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_text_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_only_what_dead_processes_left_is_swept(tmp_path):
    """Below a comparison's folder a run may still be written by a process of its own."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (tmp_path / "runs").mkdir()
    left = tmp_path / "runs" / f".coterie-{dead.pid}-{'0' * 16}.tmp"
    living = tmp_path / "runs" / f".coterie-{os.getppid()}-{'0' * 16}.tmp"
    for path in (left, living):
        path.touch()
    RunDirectory(tmp_path).sweep()
    assert (left.exists(), living.exists()) == (False, True)


def test_a_lock_that_is_a_link_empties_no_file(tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("mine")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".lock").symlink_to(mine)
    with pytest.raises(ConfigError, match="not empty"):
        RunDirectory.create(str(folder), "run", job=False)
    with pytest.raises(OSError, match="symbolic links"), claimed(folder):
        pass
    assert mine.read_text() == "mine"


def test_a_link_called_as_a_temporary_folder_is_removed_alone(tmp_path):
    kept = tmp_path / "model" / "kept"
    kept.parent.mkdir()
    kept.touch()
    link = tmp_path / f".coterie-{2**22 + 1}-{'0' * 16}.tmp"
    link.symlink_to(kept.parent)
    RunDirectory(tmp_path).sweep()
    assert kept.exists()
    assert not link.is_symlink()


@pytest.mark.parametrize("place", ["wandb", "runs/kfed,seed=0/wandb", "evaluation-round-3/wandb"])
def test_a_trackers_links_inside_of_the_run_stay(tmp_path, place):
    wandb = tmp_path / place
    (wandb / "run-1").mkdir(parents=True)
    (wandb / "latest-run").symlink_to("run-1")
    (wandb / "run-1" / "debug-core.log").symlink_to("/var/log/wandb.log")
    check_contained("run_dir", tmp_path)
    (wandb / "up").symlink_to("/var/log")
    with pytest.raises(ConfigError, match=r"wandb/up is a link"):
        check_contained("run_dir", tmp_path)


def test_what_a_copy_by_hard_links_writes_is_its_own(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    (one / ".lock").write_text("7\n")
    (one / "metrics.jsonl").write_text(before := '{"round": 1}\n')
    shutil.copytree(one, other, copy_function=os.link)
    with claimed(other), claimed(one):  # of a run each
        MetricsLog(other / "metrics.jsonl").truncate_to(0)
        with pytest.raises(ConfigError, match="another run"), claimed(other):
            pass
    assert (one / "metrics.jsonl").read_text() == before
    assert (other / "metrics.jsonl").read_text() == ""


def test_a_lock_that_has_another_name_still_locks(tmp_path):
    assert not is_claimed(tmp_path)
    with claimed(tmp_path):
        assert is_claimed(tmp_path)
        os.link(tmp_path / ".lock", tmp_path / "other")
        with pytest.raises(ConfigError, match="another run"), claimed(tmp_path):
            pass
