"""The Python API and what a run leaves behind, on the serial backend."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from safetensors.torch import load_file

from coterie import Federation
from coterie.commands.compose import compose
from coterie.errors import ConfigError, RunError
from coterie.execution import serial
from coterie.execution.serial import SerialBackend
from coterie.jobs.train import main
from coterie.run.fine_tuning import FineTuning
from tests.builders.runs import train

REPO = Path(__file__).resolve().parents[2]
SMALL = (
    "experiment=fedmcc_digits",
    "cluster=serial",
    "data.limit=300",
    "encoder=mlp",
    "encoder.hidden=[32]",
    "encoder.features=16",
    "method.representation_rounds=2",
    "method.representation_epochs=1",
    "method.clustering_rounds=2",
    "method.clustering_epochs=1",
    "evaluation.every=2",
    "checkpoint.every=1",
    "tracking.progress=none",
)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("api") / "run"
    return Federation(compose(*SMALL, f"run_dir={folder}", "tracking=csv")).run()


def rows(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def test_the_run_directory_keeps_its_contract(ran):
    names = {path.name for path in ran.run_dir.iterdir()}
    assert names >= {
        "config.yaml",
        "metrics.jsonl",
        "summary.json",
        "checkpoints",
        "model",
        "assignments.parquet",
        "figures",
        "csv",
    }
    summary = json.loads((ran.run_dir / "summary.json").read_text())
    assert summary["status"] == "completed"
    assert (summary["method"], summary["dataset"]) == ("FedMCC", "digits")
    assert (summary["rounds"], summary["clients"], summary["seed"]) == (4, 5, 0)
    assert set(summary["metrics"]["clustering"]) == {"acc", "nmi", "ari", "kappa"}
    assert 0 < summary["metrics"]["linear"]["acc"] <= 1
    assert 0 < summary["metrics"]["knn"]["acc"] <= 1
    assert summary["metrics"]["kmeans_raw"]["acc"] > 0.5
    assert summary["bytes"]["down"] > summary["bytes"]["up"] > 0
    assert summary["bytes"]["peer"] == 0
    assert summary["failures"] == []
    figures = {path.name for path in (ran.run_dir / "figures").glob("*.png")}
    assert figures == {
        "class_distances.png",
        "clusters.png",
        "confusion.png",
        "curves.png",
        "partition.png",
        "tsne.png",
    }


def test_metrics_have_a_row_per_phase_and_client(ran):
    server = [row for row in rows(ran.run_dir) if row["scope"] == "server"]
    clients = [row for row in rows(ran.run_dir) if row["scope"] == "client"]
    assert [row["round"] for row in server] == [1, 2, 3, 4]
    assert [row["stage"] for row in server] == ["representation"] * 2 + ["clustering"] * 2
    assert sorted(row["client"] for row in clients if row["round"] == 1) == [0, 1, 2, 3, 4]
    assert "clustering/acc" in server[1]
    assert "clustering/acc" not in server[0]
    total = sum(row["bytes/up"] for row in server)
    assert total == json.loads((ran.run_dir / "summary.json").read_text())["bytes"]["up"]


def test_the_config_file_starts_an_equal_run(ran):
    text = yaml.safe_load((ran.run_dir / "config.yaml").read_text())
    assert text["method"]["target"] == "coterie.modules.fedmcc:FedMCC"
    assert text["method"]["momentum"] == ran_config().method.momentum
    assert "torch" in json.dumps(text)


def ran_config():
    return compose(*SMALL)


def test_assignments_are_the_models_own(ran):
    table = pq.read_table(ran.run_dir / "assignments.parquet").to_pydict()
    assert table["sample"] == list(range(300))
    assert set(table["client"]) == {0, 1, 2, 3, 4}
    assert np.array_equal(table["cluster"], ran.assignments)
    assert all(0.1 <= confidence <= 1 for confidence in table["confidence"])


def test_the_model_folder_holds_the_returned_weights(ran):
    saved = load_file(ran.run_dir / "model" / "model.safetensors")
    returned = ran.model.state_dict()
    assert saved.keys() == returned.keys()
    assert all(torch.equal(saved[key], returned[key]) for key in saved)
    described = json.loads((ran.run_dir / "model" / "model.json").read_text())
    assert described["input"]["shape"] == [1, 8, 8]
    assert described["clusters"] == 10


def test_the_csv_logger_has_the_loss(ran):
    text = next((ran.run_dir / "csv").rglob("metrics.csv")).read_text()
    assert {"loss", "stage", "clustering/acc"} <= set(text.splitlines()[0].split(","))


def test_a_second_run_in_the_same_folder_is_refused(ran):
    with pytest.raises(ConfigError, match="the folder is not empty"):
        Federation(compose(*SMALL, f"run_dir={ran.run_dir}")).run()


def test_a_run_that_stops_half_way_resumes_to_the_same_bits(ran, tmp_path):
    whole, run_dir = load_file(ran.run_dir / "model" / "model.safetensors"), tmp_path / "run"
    overrides = (*SMALL, "evaluation.figures=false", f"run_dir={run_dir}")

    class Stops:
        def __getattr__(self, name):
            return lambda *args, **kwargs: None

        def phase_finished(self, record):
            if record.phase.round == 3:
                os.kill(os.getpid(), signal.SIGTERM)

    from coterie.errors import InterruptedRunError

    with pytest.raises(InterruptedRunError, match="SIGTERM came"):
        Federation(compose(*overrides), view=Stops()).run()
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("interrupted", 3)
    resumed = Federation(compose(*overrides, "resume=true")).run()
    saved = load_file(resumed.run_dir / "model" / "model.safetensors")
    assert all(torch.equal(saved[key], whole[key]) for key in whole)
    ours = [
        (row["round"], row["scope"], row.get("client"), row.get("loss")) for row in rows(run_dir)
    ]
    assert ours == [
        (row["round"], row["scope"], row.get("client"), row.get("loss"))
        for row in rows(ran.run_dir)
    ]


def test_a_finished_run_can_be_made_longer(ran, tmp_path):
    run_dir = tmp_path / "run"
    longer = (*SMALL, "evaluation.figures=false", f"run_dir={run_dir}")
    shorter = (*longer, "method.clustering_rounds=1")
    Federation(compose(*shorter)).run()
    resumed = Federation(compose(*longer, "resume=true")).run()
    one, other = (load_file(run.run_dir / "model" / "model.safetensors") for run in (resumed, ran))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in other)
    ours, theirs = (
        [{k: v for k, v in row.items() if "seconds" not in k} for row in rows(run.run_dir)]
        for run in (resumed, ran)
    )
    assert ours == theirs
    assert "clustering_rounds: 2" in (run_dir / "config.yaml").read_text()
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("completed", 4)
    with pytest.raises(ConfigError, match=r"had method.clustering_rounds=2, this one has .*=1; "):
        Federation(compose(*shorter, "resume=true")).run()


def test_a_failing_run_says_so_in_its_summary(tmp_path):
    run_dir = tmp_path / "run"
    overrides = ("method.learning_rate=1e30", "faults.on_client_failure=fail")
    with pytest.raises(RunError, match="Client 0 failed in round 1"):
        Federation(compose(*SMALL, *overrides, f"run_dir={run_dir}")).run()
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert "Client 0 failed in round 1" in summary["error"]


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "coterie.jobs.train", *arguments],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("method.momentun=1", "did you mean method.momentum?"),
        ("partition.clients=2000", "clients=2000 is more than the 300 samples"),
        ("data=mnist data.root=/nowhere", "/nowhere"),
        ("encoder=conv4 ~encoder.hidden", "data.size=31"),
    ],
)
def test_refused_configs_and_data_exit_with_2_and_one_sentence(
    override, sentence, tmp_path, capsys
):
    run_dir = tmp_path / "run"
    assert main([*SMALL, *override.split(), f"run_dir={run_dir}"]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.strip().splitlines()) == 1
    assert not run_dir.exists()


def test_dropped_clients_exit_with_3(tmp_path):
    values = ("partition=iid", "faults.on_client_failure=drop", "evaluation.figures=false")
    shown = "tracking.progress=lines"
    done = command(
        *SMALL,
        *values,
        shown,
        "method.target=tests.builders.fails_once:FailsOnce",
        f"run_dir={tmp_path / 'run'}",
    )
    assert done.returncode == 3, done.stdout + done.stderr
    assert "dropped (failures.log says why), so the exit code is 3." in done.stdout
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert len(summary["failures"]) == 1
    assert "dropped from the phase" in summary["failures"][0]


def test_what_clients_computed_on_is_in_the_summary(tmp_path, monkeypatch):
    monkeypatch.setattr(serial, "device_name", lambda device: "H100")
    train(tmp_path / "run", "method.clustering_rounds=0")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["device"] == "H100"


def test_actors_rest_before_the_driver_fine_tunes(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(SerialBackend, "rest", lambda self: calls.append("rest"))
    monkeypatch.setattr(FineTuning, "scores", lambda *given: calls.append("tune") or {})
    train(tmp_path / "run", "method.clustering_rounds=0", "evaluation.labelled_shares=[0.1]")
    assert calls[:2] == ["rest", "tune"]
