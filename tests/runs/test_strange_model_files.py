"""Files of a run or a model that are pipes, or links to the system's own files, end no reading.

`/proc/self/pagemap` has 256 GiB, and nobody writes to the pipe.
"""

import json
import os
import shutil

import numpy as np
import pytest
import yaml

from coterie import load_model
from coterie.checkpoints.integrity import DamagedError, file_digest
from coterie.checkpoints.retention import pointed_to
from coterie.commands.compose import compose
from coterie.errors import ConfigError, DataError
from coterie.jobs import predict
from coterie.models.named_clusters import model_digest
from coterie.models.pretrained_encoder import Pretrained
from coterie.tracking.noise_file import NoiseFile
from coterie.tracking.run_directory import RunDirectory
from coterie.tracking.run_report import write_run_report
from coterie.tracking.wandb_logger import model_artifact

pytestmark = pytest.mark.timeout(60)
WEIGHTS = "model.safetensors"
CONFIG = compose("experiment=fedmcc_digits")


@pytest.fixture(params=["link", "pipe"])
def odd(request):
    """Puts a file that never ends in place of another."""

    def put(path):
        path.unlink(missing_ok=True)
        if request.param == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to("/proc/self/pagemap")
        return path

    return put


@pytest.fixture
def model(finished_run, tmp_path):
    return shutil.copytree(finished_run.run_dir / "model", tmp_path / "model")


def test_weights_are_a_regular_file(model, odd):
    odd(model / WEIGHTS)
    with pytest.raises((OSError, ValueError), match="not a regular file"):
        model_digest(model)
    with pytest.raises(DataError, match=r"model\.safetensors: it (cannot be read|is missing)"):
        Pretrained(path=str(model))
    with pytest.raises(DataError, match=r"model\.safetensors: it (cannot be read|is missing)"):
        load_model(str(model))


def test_names_of_clusters_of_such_a_model_are_refused(model, odd, tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.zeros((3, 8, 8), np.uint8))
    (tmp_path / "names.json").write_text(
        json.dumps({"model": "x" * 64, "names": {"0": "a"}, "planes": {}})
    )
    odd(model / WEIGHTS)
    given = [f"model={model}", f"clusters={tmp_path}/names.json", f"input={tmp_path}/x.npy"]
    assert predict.main([*given, f"output={tmp_path}/o.csv"]) == 2
    assert "not a regular file" in capsys.readouterr().err


def test_what_else_a_run_keeps_is_regular(tmp_path, odd, monkeypatch):
    monkeypatch.setenv("COTERIE_NOISE_SECRET", str(tmp_path / "secret"))
    path = odd(tmp_path / "latest")
    with pytest.raises(DamagedError, match="not a regular file"):
        file_digest(path)
    assert pointed_to(tmp_path, "latest") is None
    with pytest.raises(ConfigError, match="cannot be read"):
        NoiseFile(path).open(begun=True)
    (tmp_path / "wandb").mkdir()
    odd(tmp_path / "wandb" / "model_artifact")
    assert model_artifact(tmp_path) is None


def swapped(tmp_path, text):
    """A run folder whose config has become another file since it was read."""
    (tmp_path / "config.yaml").write_text(text)
    return RunDirectory(tmp_path)


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 4)
)
SWAPS = {
    "aliases": f"{BOMB}packages: {{evil: *a3}}\n",
    "merged": "a: &a {version: 1}\nb: {<<: *a}\n",
    "tag": "packages: !!python/tuple [1]\n",
    "large": f"packages: {{}}\nx: {'x' * 600_000}\n",
}


@pytest.mark.parametrize("name", SWAPS)
def test_a_config_that_is_swapped_is_read_as_strictly_again(tmp_path, name):
    directory = swapped(tmp_path, SWAPS[name])
    with pytest.raises(DataError, match=r"config\.yaml: it is damaged"):
        write_run_report(directory, CONFIG)


def test_a_config_that_becomes_endless_is_not_read(tmp_path, odd):
    odd(tmp_path / "config.yaml")
    if (tmp_path / "config.yaml").is_file():
        with pytest.raises(DataError, match=r"config\.yaml: it is damaged"):
            write_run_report(RunDirectory(tmp_path), CONFIG)


def test_a_report_names_the_versions(finished_run, tmp_path):
    values = yaml.safe_load((finished_run.run_dir / "config.yaml").read_text())
    directory = swapped(tmp_path, yaml.safe_dump(values))
    text = write_run_report(directory, CONFIG).read_text()
    assert f"Coterie {values['version']}" in text
