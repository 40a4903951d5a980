"""Two runs never write in one directory, and a dead one leaves no claim behind."""

import fcntl
import json
import multiprocessing
import os
import shutil
import signal
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest

from coterie.commands.compose import compose
from coterie.errors import ConfigError, RunError
from coterie.jobs.train import main
from coterie.run.federation import Federation
from coterie.tracking.claim import claimed
from coterie.tracking.paths import make_writable
from coterie.tracking.run_directory import RunDirectory
from tests.builders.observers import Silent
from tests.builders.runs import COMMAND

FORK = multiprocessing.get_context("fork")
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")


@pytest.fixture
def place():
    """A folder into which everybody may write, as /tmp."""
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    path.chmod(0o1777)
    yield path
    shutil.rmtree(path)


def as_nobody(script, path):
    """What another user is told who runs a script with this path."""
    command = ["/bin/sh", "-c", script, "other", str(path)]
    done = subprocess.run(
        command, user=65534, group=65534, check=False, capture_output=True, text=True
    )
    return done.stderr


def hold(folder, held):
    with claimed(folder):
        held.set()
        signal.pause()


@pytest.fixture
def holder(tmp_path):
    held = FORK.Event()
    process = FORK.Process(target=hold, args=(tmp_path, held), daemon=True)
    process.start()
    assert held.wait(20)
    yield process
    process.kill()
    process.join()


def test_a_claim_ends_with_its_process_however_it_ends(tmp_path, holder):
    with pytest.raises(ConfigError) as caught, claimed(tmp_path):
        pass
    assert str(caught.value) == (
        f"run_dir={tmp_path}: another run (process {holder.pid}) writes in it; wait for it or "
        "choose another folder."
    )
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    with claimed(tmp_path):
        assert (tmp_path / ".lock").read_text() == f"{os.getpid()}\n"
    with claimed(tmp_path):
        pass


@pytest.mark.parametrize("resume", ["true", "false"])
@pytest.mark.parametrize("begun", [True, False])
def test_a_second_run_is_refused_and_touches_nothing(tmp_path, holder, capsys, resume, begun):
    if begun:
        (tmp_path / "config.yaml").write_text("seed: 0\n")
    assert main([*COMMAND, f"run_dir={tmp_path}", f"resume={resume}"]) == 2
    error = capsys.readouterr().err
    assert f"another run (process {holder.pid}) writes in it; wait for it" in error
    assert error.count("\n") == 1
    assert {p.name for p in tmp_path.iterdir()} == {".lock", *(["config.yaml"] if begun else [])}


def test_a_run_holds_its_directory_until_it_ends(tmp_path):
    folder, sentences = tmp_path / "run", []

    class Intrudes:
        def __getattr__(self, name):
            return lambda *args, **kwargs: None

        def phase_finished(self, record):
            with pytest.raises(ConfigError) as caught:
                Federation(compose(*COMMAND, f"run_dir={folder}", "resume=true")).run()
            sentences.append(str(caught.value))

    Federation(compose(*COMMAND, f"run_dir={folder}"), view=Intrudes()).run()
    assert len(sentences) == 2
    assert all(f"(process {os.getpid()}) writes in it" in sentence for sentence in sentences)
    assert json.loads((folder / "summary.json").read_text())["status"] == "completed"
    assert main([*COMMAND, f"run_dir={folder}", "resume=true"]) == 0


def test_a_refused_run_leaves_a_folder_that_was_there_empty(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    assert main([*COMMAND, f"run_dir={folder}", "precision=16-mixed"]) == 2
    assert list(folder.iterdir()) == []


@as_root
@pytest.mark.parametrize("old", [False, True])
def test_another_user_cannot_hold_the_claim(place, old):
    if old:  # of a version that left it open to all, or of a copy
        (place / ".lock").touch(0o644)
    with claimed(place):
        pass
    assert "denied" in as_nobody('exec 9<"$1"', place / ".lock")


@as_root
@pytest.mark.parametrize("resume", ["true", "false"])
def test_a_folder_that_another_user_has_made_is_refused(place, capsys, resume):
    as_nobody('mkdir "$1"', place / "run")
    if resume == "true":  # of a run of root's, which he has got into his folder
        as_nobody('touch "$1"', place / "run" / "config.yaml")
        (place / "run" / "config.yaml").write_text("seed: 0\n")
    assert main([*COMMAND, f"run_dir={place / 'run'}", f"resume={resume}"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert told == (
        f"run_dir={place / 'run'}: it belongs to another user, who could redirect what is "
        "written there to other files; choose a new folder, or chown this one with all that is in "
        "it."
    )


@as_root
@pytest.mark.parametrize("key", ["out", "run_dir"])
def test_a_folder_in_which_others_may_put_links_is_refused(place, key):
    """Whether everybody may write there, or another user has made the link that leads there."""
    private, theirs = place / "private", place / "theirs"
    private.mkdir(mode=0o700)
    as_nobody(f'mkdir "$1"; ln -s {private} "$1/out"', theirs)
    with pytest.raises(ConfigError, match=f"^{key}={theirs}/out: it belongs to another user"):
        make_writable(key, theirs / "out")
    with pytest.raises(ConfigError, match=f"^{key}={place}: everybody may write there, and could"):
        make_writable(key, place)
    make_writable(key, place / "new")
    (place / "own").symlink_to(private)
    make_writable(key, place / "own")


def test_where_files_have_no_modes_no_folder_is_open_to_all(tmp_path, monkeypatch, caplog):
    """As on a drive of Windows, where each is shown with all rights and chmod does nothing."""
    made = tempfile.TemporaryFile

    def with_all_rights(*args, **keys):
        file = made(*args, **keys)
        os.fchmod(file.fileno(), 0o777)
        return file

    tmp_path.chmod(0o777)
    monkeypatch.setattr(Path, "chmod", lambda self, mode: None)
    monkeypatch.setattr(tempfile, "TemporaryFile", with_all_rights)
    RunDirectory.create(str(tmp_path), "x", job=False)
    assert "everybody could write" not in caplog.text


@as_root
def test_what_a_run_writes_is_not_led_out_of_a_folder_that_was_open_to_all(place, caplog):
    """Another user puts a link there as soon as the run has begun."""
    folder, victim = place / "run", place / "private"
    folder.mkdir()
    folder.chmod(0o777)
    victim.mkdir(mode=0o700)
    (victim / "config.yaml").write_text("precious")

    class Links(Silent):
        def start(self, *args, **kwargs):
            as_nobody(f'ln -s {victim} "$1"', folder / "model")

    Federation(compose(*COMMAND, f"run_dir={folder}"), Links()).run()
    assert f"{folder}: everybody could write there; now its owner and group can." in caplog.text
    assert (victim / "config.yaml").read_text() == "precious"
    assert (folder / "model" / "config.yaml").is_file()
    (folder / "checkpoints").chmod(0o1777)
    (folder / "model").chmod(0o777)
    assert main([*COMMAND, f"run_dir={folder}", "resume=true"]) == 0
    modes = [stat.S_IMODE((folder / name).stat().st_mode) for name in ("checkpoints", "model")]
    assert modes == [0o700, 0o775]
    (folder / "model").chmod(0o777)
    os.chown(folder / "model", 65534, 65534)
    RunDirectory.open(str(folder))  # what another user has is not changed
    assert stat.S_IMODE((folder / "model").stat().st_mode) == 0o777


def test_a_folder_that_is_no_run_is_left_as_it_is(tmp_path):
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    for words in ([], ["resume=true"]):
        assert main([*COMMAND, f"run_dir={tmp_path}", *words]) == 2
    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o777


@pytest.mark.parametrize("given", [True, False])
def test_a_run_makes_no_folder_that_is_open_to_all(tmp_path, monkeypatch, given):
    monkeypatch.setenv("COTERIE_RUNS", str(tmp_path / "runs"))
    before = os.umask(0)
    try:
        made = RunDirectory.create(str(tmp_path / "a" / "run") if given else None, "x", job=False)
    finally:
        os.umask(before)
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o775


@pytest.mark.parametrize("deleted", [False, True])
def test_a_run_whose_folder_is_moved_says_so_and_can_be_gone_on_with(tmp_path, deleted):
    folder, plain = tmp_path / "run", tmp_path / "plain"
    keys = ("checkpoint.every=1", "method.representation_rounds=3")

    class Moves(Silent):
        def phase_finished(self, record):
            if record.phase.round == 1 and folder.is_dir():
                shutil.rmtree(folder) if deleted else folder.rename(tmp_path / "moved")

    with pytest.raises(RunError, match=f"^run_dir={folder}: the folder was moved or deleted"):
        Federation(compose(*COMMAND, *keys, f"run_dir={folder}"), Moves()).run()
    assert not folder.exists()
    if deleted:
        return
    (tmp_path / "moved").rename(folder)
    assert main([*COMMAND, *keys, f"run_dir={folder}", "resume=true"]) == 0
    assert main([*COMMAND, *keys, f"run_dir={plain}"]) == 0
    assert len({(run / "model/model.safetensors").read_bytes() for run in (folder, plain)}) == 1


def test_a_lock_without_a_run_is_not_told_as_one(tmp_path):
    (tmp_path / ".lock").write_text(f"{2**22 + 1}\n")  # an id above Linux' largest
    with (tmp_path / ".lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ConfigError) as caught, claimed(tmp_path):
            pass
    assert str(caught.value) == (
        f"run_dir={tmp_path}: its .lock is locked, by a run on another machine or by another "
        "user's program; wait for it, or go on in a copy of the folder."
    )
