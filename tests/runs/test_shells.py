"""A run in the shells of batch systems, containers and closed terminals, and how it says no."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from coterie.tracking.run_records import is_completed
from tests.builders.runs import COMMAND

AWKWARD = {
    "RANK": "banana",
    "LOCAL_RANK": "1",
    "SLURM_PROCID": "3",
    "JSM_NAMESPACE_RANK": "2",
    "COLUMNS": "0",
    "HOME": "/proc/nohome",
    "TMPDIR": "/no/such/folder",
    "PYTHONIOENCODING": "ascii",
}
ASCII_SHELL = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
TRAIN = (sys.executable, "-m", "coterie.jobs.train")
SHOWN = [text for text in COMMAND if not text.startswith("tracking.progress")]
LOGGED = (*SHOWN, "tracking.loggers=[csv,tensorboard,wandb]")


def run(arguments, **options):
    own = {**os.environ, **options.pop("env", {})}
    pipes = {"stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, **options}
    command = [*TRAIN, *arguments]
    return subprocess.run(command, env=own, timeout=900, check=False, **pipes)


def check_complete(folder):
    assert is_completed(folder / "summary.json")
    assert (folder / "csv/version_0/metrics.csv").stat().st_size
    assert list(folder.glob("tensorboard/version_0/events*"))


def test_the_environment_of_a_launcher_without_home_or_width_changes_nothing(tmp_path):
    out = tmp_path / "run"
    with Path("/dev/full").open("w") as full:
        done = run([*LOGGED, f"run_dir={out}"], env=AWKWARD, stdout=full)
    assert (done.returncode, done.stderr) == (0, b"")
    check_complete(out)


NAMELESS = """
import os, pwd, sys

def getpwuid(number):
    raise KeyError(f"getpwuid(): uid not found: {number}")

pwd.getpwuid = getpwuid
for name in ("HOME", "USER", "LOGNAME", "LNAME", "USERNAME"):
    os.environ.pop(name, None)
from coterie.jobs.train import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_number_without_a_name_needs_no_home(tmp_path):
    out = tmp_path / "run"
    arguments = (*LOGGED, f"run_dir={out}")
    command, place = [sys.executable, "-c", NAMELESS, *arguments], tmp_path / "temporary"
    place.mkdir()
    env = {**os.environ, "TMPDIR": str(place)}
    done = subprocess.run(command, env=env, capture_output=True, check=False, timeout=900)
    assert (done.returncode, done.stderr) == (0, b"")
    check_complete(out)
    assert not [*place.glob("coterie-*")]


@pytest.mark.parametrize("encoding", ["ascii", pytest.param("latin-1", marks=pytest.mark.slow)])
def test_help_is_told_in_any_encoding(encoding):
    done = run(["--help"], env={"PYTHONIOENCODING": encoding}, stdout=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "usage: coterie train" in done.stdout.decode(encoding)


@pytest.mark.slow
def test_data_is_checked_where_the_locale_knows_ascii_alone(tmp_path):
    for name in ("Bär", "猫"):
        (tmp_path / "data" / name).mkdir(parents=True)
        Image.new("L", (4, 4), len(name)).save(tmp_path / "data" / name / f"{name}.png")
    keys = ("data=class_folders", f"data.path={tmp_path / 'data'}", f"out={tmp_path / 'out'}")
    done = subprocess.run(
        [sys.executable, "-m", "coterie.jobs", "check_data", *keys],
        env={**os.environ, **ASCII_SHELL},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"B?r: 1, ?: 1" in done.stdout
    assert (tmp_path / "out" / "contact_sheet.png").stat().st_size


@pytest.mark.ray
@pytest.mark.slow
def test_actors_work_for_a_command_without_streams(tmp_path):
    out = tmp_path / "run"
    arguments = (*SHOWN, "executor=lightning", "cluster=local", "cluster.num_actors=1")
    command = [*TRAIN, *arguments, f"run_dir={out}"]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command], check=False, timeout=280
    )
    assert done.returncode == 0
    assert is_completed(out / "summary.json")


@pytest.mark.parametrize(
    "number", [signal.SIGUSR1, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)]
)
def test_a_batch_systems_signal_saves_the_run(tmp_path, number):
    out = tmp_path / "run"
    rounds = [text for text in LOGGED if "representation_rounds" not in text]
    arguments = [*rounds, "method.representation_rounds=100000", f"run_dir={out}"]
    before = signal.signal(number, signal.SIG_DFL)  # what nohup ignores stays ignored
    process = subprocess.Popen(
        [*TRAIN, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    signal.signal(number, before)
    try:
        metrics = out / "metrics.jsonl"
        for _ in range(6000):
            if metrics.is_file() and metrics.stat().st_size:
                break
            time.sleep(0.1)
        process.send_signal(number)
        assert process.wait(300) == 130
    finally:
        process.kill()
    assert (out / "checkpoints" / "latest").exists()
