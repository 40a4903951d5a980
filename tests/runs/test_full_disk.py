"""A disk that is full: a limit on the size of files stands in for it (EFBIG in place of ENOSPC)."""

import os
import resource
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from coterie.jobs.train import main
from tests.builders.comparisons import ROOT
from tests.builders.runs import COMMAND

FIGURES = (
    *COMMAND,
    "evaluation.figures=true",
    "checkpoint.every=1",
    "encoder.hidden=[4]",
    "encoder.features=4",
    "method.hidden=4",
    "method.projection=4",
)


def limited(limit, *arguments):
    """Train where no file may be longer than `limit` bytes."""
    return subprocess.run(
        [sys.executable, "-m", "coterie.jobs.train", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"platform{os.pathsep}."},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    assert main([*FIGURES, f"run_dir={run_dir}"]) == 0
    return run_dir


@pytest.mark.slow
def test_a_figure_that_cannot_be_written_is_told_and_ends_nothing(tmp_path, whole):
    sizes = {path: path.stat().st_size for path in whole.rglob("*") if path.is_file()}
    sizes.pop(whole / "report.html")  # it holds the figures, and is written after them
    largest = max(sizes, key=sizes.__getitem__)
    assert largest.parent.name == "figures"  # drawn at the end; all else fits under the limit
    assert largest.name != "partition.png"
    run_dir = tmp_path / "run"
    shown = ("tracking.progress=lines", f"run_dir={run_dir}")
    done = limited(sizes[largest] - 1, *FIGURES, *shown)
    assert done.returncode == 0
    assert largest.name in done.stdout + done.stderr
    assert not (run_dir / "figures" / largest.name).exists()
    expected, model = (load_file(d / "model" / "model.safetensors") for d in (whole, run_dir))
    assert all(torch.equal(model[key], expected[key]) for key in expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "file", "so_far"),
    [(1, "config.yaml", "nothing was trained"), (8192, "model/model.safetensors", "training is")],
)
def test_the_file_is_named_that_cannot_be_written(tmp_path, limit, file, so_far):
    run_dir = tmp_path / "run"
    done = limited(limit, *COMMAND, f"run_dir={run_dir}")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    sentence = done.stderr.splitlines()[-1]
    assert sentence.startswith(f"{run_dir / file}: cannot write or read (")
    assert "File too large" in sentence
    assert f"); {so_far}" in sentence
