"""What a run, its pretraining and its evaluation leave on W&B, read back from the offline files."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from coterie import Federation, compose
from coterie.jobs import evaluate, pretrain, train
from tests.builders.observers import Silent
from tests.builders.runs import COMMAND
from tests.builders.wandb_records import complete_wandb_records

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tracking.md"
WANDB = ("tracking=wandb", "tracking.wandb.mode=offline", "tracking.progress=none")
RUN = (*COMMAND, *WANDB, "partition.clients=3")
FIGURES = ("class_distances", "clusters", "confusion", "curves", "partition", "tsne")
OWN_ENCODER = ("encoder=mlp", "encoder.hidden=[16]", "encoder.features=8")


@pytest.fixture(scope="module", autouse=True)
def alone(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_RUN_GROUP", "WANDB_RUN_ID"):
            patch.delenv(name, raising=False)
        patch.setenv("NETRC", str(tmp_path_factory.mktemp("netrc") / "none"))
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders of a pretraining, of a run that starts from it, and of an evaluation of that run."""
    folder = tmp_path_factory.mktemp("wandb")
    first, second = folder / "pretrained", folder / "trained"
    assert pretrain.main([*RUN, f"out={first}"]) == 0
    rest = [text for text in RUN if text not in OWN_ENCODER]
    figures = ("evaluation.every=1", "evaluation.figures=true", "tracking.wandb.group=mine")
    own = ("encoder=pretrained", f"encoder.path={first}", "encoder.freeze=false")
    assert train.main([*rest, *own, *figures, f"run_dir={second}"]) == 0
    chosen = ("labelled_shares=[]", "evaluation.figures=true", f"out={folder / 'evaluated'}")
    assert evaluate.main([f"run={second}", "tracking.loggers=[wandb]", *chosen]) == 0
    return first, second, folder / "evaluated"


def read(folder):
    (path,) = (folder / "wandb").glob("offline-run-*/*.wandb")
    return complete_wandb_records(path)


def run_of(records):
    (run,) = {r.run.run_id: r.run for r in records if r.HasField("run")}.values()
    return run


def config_of(records):
    updates = [u for r in records if r.HasField("run") for u in r.run.config.update]
    updates += [u for r in records if r.HasField("config") for u in r.config.update]
    return {u.key or u.nested_key[0]: json.loads(u.value_json) for u in updates}


def rows_of(records):
    """The rows of the history; a table's or a picture's facts as one dictionary."""
    found = []
    for history in (r.history for r in records if r.HasField("history")):
        row = {}
        for item in history.item:
            name, *inner = item.nested_key or [item.key]
            value = json.loads(item.value_json)
            row[name] = {**row.get(name, {}), inner[0]: value} if inner else value
        found.append(row)
    return found


def artifacts_of(records):
    sent = [r.artifact for r in records if r.HasField("artifact")]
    sent += [
        r.request.log_artifact.artifact
        for r in records
        if r.HasField("request") and r.request.HasField("log_artifact")
    ]
    return {a.name: a for a in sent}


def test_there_is_one_run_with_its_group_and_job_type(runs):
    kinds = [run_of(read(folder)) for folder in runs]
    assert [run.job_type for run in kinds] == ["pretrain", "train", "evaluate"]
    assert [run.run_group for run in kinds] == ["", "mine", "mine"]


def test_every_evaluation_has_a_table_of_the_clients(runs):
    folder = runs[1]
    tables = [row["clients"] for row in rows_of(read(folder)) if "clients" in row]
    assert [table["nrows"] for table in tables] == [3, 3]  # after round 1, and at the end
    (files,) = (folder / "wandb").glob("offline-run-*/files")
    table = json.loads((files / tables[-1]["path"]).read_text())
    names = ["client", "samples", "tasks", "failures", "loss", "seconds"]
    assert table["columns"] == [*names, "bytes_down", "bytes_up", "bytes_peer"]
    assert [row[:4] for row in table["data"]] == [[0, 34, 2, 0], [1, 33, 2, 0], [2, 33, 2, 0]]


def test_the_figures_are_pictures(runs):
    names = {key for row in rows_of(read(runs[1])) for key in row if key.startswith("figures/")}
    assert names == {f"figures/{n}" for n in FIGURES}
    assert list((runs[1] / "wandb").glob("offline-run-*/files/media/images/figures/curves*.png"))


def test_the_model_is_an_artifact_and_the_run_that_starts_from_it_names_it(runs):
    first, second, evaluated = map(read, runs)
    names = [f"model-{run_of(records).run_id}" for records in (first, second)]
    for records, name in zip((first, second), names, strict=True):
        artifact = artifacts_of(records)[name]
        assert artifact.type == "model"
        assert "clustering/acc" in json.loads(artifact.metadata)
        assert {Path(e.path).name for e in artifact.manifest.contents} >= {"model.safetensors"}
    assert config_of(second)["pretrained_artifact"] == f"coterie/{names[0]}:latest"
    assert config_of(evaluated)["pretrained_artifact"] == f"coterie/{names[1]}:latest"


def test_the_evaluation_has_its_scores(runs):
    shown = {key: value for row in rows_of(read(runs[2])) for key, value in row.items()}
    scores = json.loads((runs[2] / "metrics.json").read_text())["metrics"]["clustering"]
    assert {name: shown[f"clustering/{name}"] for name in scores} == scores


@pytest.mark.slow
def test_a_run_that_an_agent_starts_is_the_sweeps(tmp_path):
    from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args

    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    sweep = yaml.safe_load(text)
    chosen = {"seed": 1, "method.batch_size": 64, "partition.clients": 4}
    assert {k: v.get("values", [v.get("value")]) for k, v in sweep["parameters"].items()} == {
        "seed": [0, 1, 2],
        "method.batch_size": [64, 128],
        "partition.clients": [4],
    }
    given = {"args": {key: {"value": value} for key, value in chosen.items()}}
    filled = create_sweep_command_args(given) | {"program": [sweep["program"]]}
    words = []
    for word in create_sweep_command(sweep["command"]):
        found = re.fullmatch(r"\$\{(\w+)\}", word)
        words += filled[found[1]] if found else [word]
    assert words[:3] == ["python", "-m", "coterie.jobs.train"]
    config = compose(*words[3:])
    assert (config.seed, config.partition.clients) == (1, 4)
    small = [text for text in RUN if not text.startswith(("experiment", "tracking=", "partition"))]
    agent = {"WANDB_SWEEP_ID": "sweep7", "WANDB_RUN_ID": "agent123"}
    paths = os.pathsep.join([str(ROOT / "platform"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, *words[1:], *small, f"run_dir={tmp_path}/run"],
        env={**os.environ, **agent, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    run = run_of(read(tmp_path / "run"))
    assert (run.run_id, run.sweep_id) == ("agent123", "sweep7")


@pytest.mark.parametrize(
    ("mode", "variable", "told"),
    [("auto", None, True), ("auto", "", True), ("auto", "offline", False), ("offline", "", False)],
)
def test_a_run_that_is_offline_by_itself_says_so(tmp_path, monkeypatch, mode, variable, told):
    monkeypatch.setenv("WANDB_SILENT", "")  # empty variables count for nothing
    if variable is not None:
        monkeypatch.setenv("WANDB_MODE", variable)
    view = Silent()
    keys = ("tracking.loggers=[wandb]", f"tracking.wandb.mode={mode}", "evaluation.every=0")
    Federation(compose(*COMMAND, *keys, f"run_dir={tmp_path / 'run'}"), view).run()
    assert any("wandb sync" in note for note in view.notes) is told
    assert read(tmp_path / "run")
