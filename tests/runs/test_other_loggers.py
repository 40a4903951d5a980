"""Another library's Lightning logger by one line of config: MLflow with its local store."""

import json

import pytest

from coterie import Federation, compose
from coterie.jobs.train import main
from tests.builders.runs import COMMAND

MLFLOW = "lightning.pytorch.loggers:MLFlowLogger"


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mlflow")
    line = f"tracking.loggers=[csv,{{target: {MLFLOW}, tracking_uri: 'sqlite:///{folder}/m.db'}}]"
    result = Federation(compose(*COMMAND, line, f"run_dir={folder}/run")).run()
    return result, f"sqlite:///{folder}/m.db"


@pytest.fixture(scope="module")
def stored(ran):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(ran[1])
    (experiment,) = client.search_experiments(filter_string="name = 'coterie'")
    (run,) = client.search_runs([experiment.experiment_id])
    return client, run


def test_mlflow_has_the_final_scores_and_the_run_as_finished(ran, stored):
    final = json.loads((ran[0].run_dir / "summary.json").read_text())["metrics"]["clustering"]
    _, run = stored
    assert run.info.status == "FINISHED"
    assert {name: run.data.metrics[f"clustering/{name}"] for name in final} == final


def test_mlflow_has_the_config_as_parameters(ran, stored):
    _, run = stored
    assert run.data.params["method/batch_size"] == "16"
    assert run.data.params["seed"] == "0"
    assert run.info.run_name == f"fedmcc_digits-{ran[0].run_dir.name}"


def test_mlflow_has_the_loss_of_every_phase(ran, stored):
    client, run = stored
    lines = (ran[0].run_dir / "metrics.jsonl").read_text().splitlines()
    losses = [row["loss"] for row in map(json.loads, lines) if row["scope"] == "server"]
    assert [m.value for m in client.get_metric_history(run.info.run_id, "loss")] == losses


@pytest.mark.parametrize(
    ("logger", "sentence"),
    [
        ("{name: MLFlowLogger}", "tracking.loggers[0]={name:MLFlowLogger}: "),
        ("{target: no.such:Logger}", "tracking.loggers[0].target=no.such:Logger: no module 'no'"),
        (
            "{target: builtins:dict}",
            "tracking.loggers[0].target=builtins:dict: it is not of type Logger; name",
        ),
        (
            f"{{target: {MLFLOW}, tracking_uri: no-such-store://x}}",
            f"tracking.loggers[0].target={MLFLOW}: it cannot be built (",
        ),
        (
            f"{{target: {MLFLOW}, tracking_url: x}}",
            f"tracking.loggers[0].tracking_url: {MLFLOW} does not take it; must be one of",
        ),
    ],
)
def test_a_logger_that_does_not_exist_is_refused_in_a_sentence(
    tmp_path, capsys, monkeypatch, logger, sentence
):
    run_dir = tmp_path / "run"
    assert main([*COMMAND, f"tracking.loggers=[{logger}]", f"run_dir={run_dir}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(sentence)
    assert error.count("\n") == 1
    assert not run_dir.exists()
