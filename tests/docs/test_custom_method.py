"""docs/custom-method.md, run as it is written: its code, and its commands in a shell."""

import csv
import json
import os
import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from coterie.commands.compose import compose_plain, experiments
from coterie.errors import ConfigError
from tests.builders.forks import python

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "custom-method.md").read_text(encoding="utf-8")
CHEAP = ("cluster=serial", "data.limit=200", "evaluation.figures=false")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with my_method.py, from which runs are started."""
    place = tmp_path_factory.mktemp("own")
    (place / "my_method.py").write_text("\n\n".join(blocks("python")), encoding="utf-8")
    return place


def shell(command, folder, *more):
    """A command of the page, with keys that make it cheap at its end."""
    given = shlex.split(command.replace("\\\n", " "))[1:]
    paths = os.pathsep.join([str(ROOT / "platform"), str(ROOT)])
    words = ["-m", "coterie.jobs", *given, *more]
    return python(words, folder, os.environ | {"PYTHONPATH": paths})


def test_the_shortest_form_is_averaged(folder):
    train, *_ = blocks("bash")
    done = shell(train, folder, *CHEAP)
    assert done.returncode == 0, done.stderr
    run = folder / "runs" / "averaged"
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["method"], summary["rounds"]) == ("AveragedAutoencoder", 3)
    assert summary["metrics"]["linear"]["acc"] > 0.5


def test_the_command_trains_it_and_it_clusters(folder):
    _, train, _ = blocks("bash")
    assert "coterie train " in train
    done = shell(train, folder, *CHEAP)
    assert done.returncode == 0, done.stderr
    run = folder / "runs" / "own"
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["method"], summary["rounds"]) == ("FedAutoencoder", 4)
    assert summary["metrics"]["clustering"]["nmi"] > 0.2
    assert summary["metrics"]["linear"]["acc"] > 0.5
    rows = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    losses = [row["loss"] for row in rows if row["scope"] == "server" and "loss" in row]
    assert len(losses) == 3
    assert losses[-1] < losses[0]
    last = [row for row in rows if row["scope"] == "server"][-1]
    assert last["stage"] == "clustering"
    assert "bytes/up/encoder" not in last
    assert last["bytes/up/gathered/centroids"] > 0
    model = load_file(run / "model" / "model.safetensors")
    (centroids,) = [value for name, value in model.items() if "centroids" in name]
    assert centroids.shape[0] == 10
    assert torch.isfinite(centroids).all()


def test_a_mistyped_key_is_explained_as_the_page_says(folder):
    _, train, _ = blocks("bash")
    done = shell(train.replace("method.rounds=3", "method.rouns=3"), folder, *CHEAP)
    assert done.returncode == 2
    assert "method.rouns=3: there is no such key; did you mean method.rounds?" in done.stderr


def test_it_has_a_name_of_its_own(tmp_path, monkeypatch):
    own = tmp_path / "configs"
    shutil.copytree(ROOT / "configs", own)
    method, experiment = blocks("yaml")
    (own / "method").mkdir()
    (own / "method" / "mine.yaml").write_text(method, encoding="utf-8")
    (own / "experiment" / "mine.yaml").write_text(experiment, encoding="utf-8")
    monkeypatch.setattr("coterie.commands.compose.config_dir", lambda: own)
    told = experiments()
    assert told["mine"] == "A federated autoencoder, on the data of your choice: add data=…."
    assert told["mine_digits"].startswith("A federated autoencoder on scikit-learn's digits")
    found = compose_plain("experiment=mine_digits")
    assert found == compose_plain("experiment=mine", "data=digits") | {"experiment": "mine_digits"}
    assert found["method"] == {"target": "my_method:FedAutoencoder", "rounds": 3}
    assert found["partition"]["clients"] == 5
    assert compose_plain("experiment=mine", "data=mnist")["experiment"] == "mine"
    with pytest.raises(ConfigError, match="data: none is chosen"):
        compose_plain("experiment=mine")


@pytest.mark.slow
def test_the_command_compares_it(folder):
    *_, compare = blocks("bash")
    done = shell(compare, folder, *CHEAP)
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader((folder / "runs" / "own-compared" / "table.csv").open()))
    assert [(row["experiment"], row["completed"]) for row in rows] == [("own", "1"), ("fedcc", "1")]
