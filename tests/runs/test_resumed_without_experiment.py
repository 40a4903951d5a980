"""`resume=true run_dir=…` alone goes on with that run's own config."""

import json
import shutil
from pathlib import Path

import pytest

from coterie.commands.compose import compose
from coterie.config import dump_config
from coterie.errors import ConfigError
from coterie.tracking.run_directory import RunDirectory
from ray_jobs.train import main


@pytest.fixture
def folder(finished_run, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_run.run_dir, tmp_path / "copy"))


def asked(folder: Path, *others: str) -> tuple[str, ...]:
    return ("resume=true", f"run_dir={folder}", *others)


def test_the_config_is_the_runs_own(folder: Path, finished_run) -> None:
    found = dump_config(compose(*asked(folder)))
    own = RunDirectory.open(str(finished_run.run_dir)).read_config()
    assert found == {**own, "resume": True, "run_dir": str(folder)}


def test_values_and_another_backend_may_be_given(folder: Path) -> None:
    found = compose(*asked(folder, "cluster=local", "tracking=none", "method.clustering_rounds=3"))
    assert (found.cluster.backend, found.method.clustering_rounds) == ("ray", 3)
    with pytest.raises(
        ConfigError, match=r"^method\.clusterin_rounds=3: there is no such key; did"
    ):
        compose(*asked(folder, "method.clusterin_rounds=3"))


def test_a_longer_run_needs_no_more_than_its_new_length(folder: Path) -> None:
    assert main(asked(folder, "method.clustering_rounds=3")) == 0
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("completed", 5)


@pytest.mark.parametrize("others", [("resume=false",), ("encoder=mlp",), ("run_dir=nowhere",)])
def test_else_an_experiment_is_asked_for(folder: Path, others: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as refusal:
        compose(*asked(folder, *others))
    assert str(refusal.value) == (
        "experiment: none is chosen; give experiment=<name> (--help lists them)."
    )
