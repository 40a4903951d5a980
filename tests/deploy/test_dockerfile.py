"""deploy/Dockerfile: what it copies, and its own installation step in a clean folder."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STEPS = re.sub(r"\\\n\s*", "", (ROOT / "deploy" / "Dockerfile").read_text()).splitlines()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
INSTALL = next(step for step in STEPS if "pip install" in step).removeprefix("RUN ")
EXTRAS = next(step for step in STEPS if step.startswith("ARG EXTRAS=")).removeprefix("ARG EXTRAS=")

# Coterie alone, into a folder: what it needs is here, and PyTorch's own index is not to be had.
PIP = """#!/usr/bin/env bash
echo "$@" >"$TOLD"
exec "$REAL" -m pip install --no-deps --target "$TARGET" \
    --disable-pip-version-check "${@: -1}"
"""


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """The folder in which the image installs, before it does."""
    folder = tmp_path_factory.mktemp("image")
    for step in STEPS:
        if step.startswith("COPY "):
            *sources, target = step.split()[1:]
            for source in sources:
                place = folder / (Path(source).name if target == "./" else target)
                if (ROOT / source).is_dir():
                    shutil.copytree(ROOT / source, place, ignore=shutil.ignore_patterns("*.pyc"))
                else:
                    shutil.copy(ROOT / source, place)
    return folder


def test_everything_that_the_wheel_has_is_copied(copied):
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    for path in (
        *wheel["packages"],
        *wheel["force-include"],
        *PROJECT["project"]["license-files"],
        PROJECT["project"]["readme"],
        "constraints.txt",
    ):
        assert (copied / path).exists(), path
    assert {path.name for path in copied.iterdir()} == {
        *(path.partition("/")[0] for path in (*wheel["packages"], *wheel["force-include"])),
        *("modules", "datamodules", "ray_jobs"),  # links in the package lead to them
        *("LICENSE", "README.md", "constraints.txt", "pyproject.toml"),
    }


def test_the_installation_is_that_of_make_install():
    makefile = (ROOT / "Makefile").read_text()
    for words in ("--constraint constraints.txt", "-m pip install"):
        assert words in INSTALL
        assert words in makefile
    assert "[faiss-$FAISS,$EXTRAS]" in INSTALL
    assert "[faiss-$(FAISS),dev]" in makefile
    assert {"faiss-cpu", "faiss-gpu"} <= PROJECT["project"]["optional-dependencies"].keys()
    (base,) = [step for step in STEPS if step.startswith("FROM ")]
    version = re.fullmatch(r"FROM python:(\d+)\.(\d+)-slim", base)
    assert version is not None
    assert (int(version[1]), int(version[2])) >= (3, 11)


@pytest.mark.slow  # it builds a wheel, with a build system that pip has to fetch
@pytest.mark.parametrize("faiss", ["cpu", "gpu"])
def test_the_installed_image_runs_a_command(copied, tmp_path, faiss):
    stub, site, told = tmp_path / "bin", tmp_path / "site", tmp_path / "told"
    stub.mkdir()
    (stub / "python").write_text(PIP)
    (stub / "python").chmod(0o755)
    done = subprocess.run(
        ["sh", "-euc", INSTALL],
        cwd=copied,
        env={
            **os.environ,
            "FAISS": faiss,
            "EXTRAS": EXTRAS,
            "TARGET": str(site),
            "TOLD": str(told),
            "REAL": sys.executable,
            "PATH": f"{stub}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert told.read_text().endswith(f".[faiss-{faiss},{EXTRAS}]\n")
    assert ("--extra-index-url" in told.read_text()) == (faiss == "cpu")
    shown = subprocess.run(
        [sys.executable, "-m", "coterie.jobs.train", "--help", "experiment=concord_digits"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    assert "concord" in shown.stdout
