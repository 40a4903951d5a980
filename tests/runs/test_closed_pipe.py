"""A run whose lines nobody reads any more, as with `| head`, goes on to its end."""

import os
import subprocess
import sys

import pytest

from coterie.tracking.run_records import is_completed

RUN = (
    "experiment=kfed",
    "cluster=serial",
    "data=digits",
    "data.limit=200",
    "evaluation.figures=false",
    "evaluation.knn_k=5",
)


def _unread(module, *arguments, streams=("stdout",)):
    """The exit code and the other stream's text of a command whose output has no reader."""
    reader, writer = os.pipe()
    os.close(reader)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **dict.fromkeys(streams, writer)}
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments], check=False, text=True, timeout=300, **pipes
        )
    finally:
        os.close(writer)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "streams", [pytest.param(("stdout",), marks=pytest.mark.slow), ("stdout", "stderr")]
)
def test_a_run_completes(tmp_path, streams):
    out = tmp_path / "run"
    code, said = _unread("coterie.jobs.train", *RUN, f"run_dir={out}", streams=streams)
    assert (code, said or "") == (0, "")
    assert is_completed(out / "summary.json")


@pytest.mark.parametrize("arguments", [("--help",), ()])
def test_a_command_that_prints_ends_without_a_word(arguments):
    assert _unread("coterie.jobs.study", *arguments) == (0, "")


def test_a_mistake_keeps_its_exit_code():
    code, _ = _unread("coterie.jobs.train", "no=such", streams=("stdout", "stderr"))
    assert code == 2
