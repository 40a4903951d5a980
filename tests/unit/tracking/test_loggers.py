"""The tracker, with the real CSV, TensorBoard and (offline) W&B loggers, read back from disk."""

import csv
import json
import logging

import pytest
import yaml
from lightning.pytorch.loggers import CSVLogger, Logger
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from coterie.config.schema import TrackingConfig, WandbConfig
from coterie.errors import ConfigError
from coterie.tracking.loggers import Tracker, build_loggers
from coterie.tracking.metrics_log import MetricsLog, MetricsRow
from coterie.tracking.wandb_logger import build_wandb_logger, resolve_mode
from tests.builders.wandb_records import complete_wandb_records

CONFIG = {"experiment": "tiny", "seed": 3, "method": {"lr": 0.125}}


@pytest.fixture(autouse=True)
def no_account(tmp_path, monkeypatch):
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "WANDB_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))


def row(round_, step=0, client=None, stage="cluster", phase="train", **values):
    return MetricsRow(
        round=round_, stage=stage, phase=phase, step=step, values=values, client=client
    )


def track(directory, *loggers, client_rows=2, **options):
    config = TrackingConfig(loggers=loggers, client_rows=client_rows, **options)
    built = build_loggers(config, directory, "tiny", CONFIG)
    tracker = Tracker(MetricsLog(directory / "metrics.jsonl"), built, client_rows, CONFIG)
    tracker.start()
    return tracker


def feed(tracker):
    """Two rounds of two phases each with three clients, and an evaluation at the end."""
    for round_ in (1, 2):
        for step in (0, 1):
            tracker.log(row(round_, step, loss=round_ + step / 4))
            for client in (2, 0, 1):
                tracker.log(row(round_, step, client=client, loss=client + 0.5))
    tracker.log(row(2, 1, stage="", acc=0.75))
    tracker.finish("success")


def lines(directory):
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


SERVER = [(1, 1.0), (2, 1.25), (3, 2.0), (4, 2.25)]


def test_csv_holds_every_row_at_the_phase_counter(tmp_path):
    feed(track(tmp_path, "csv"))
    with (tmp_path / "csv" / "version_0" / "metrics.csv").open() as file:
        table = list(csv.DictReader(file))
    series = {
        name: [(int(r["step"]), float(r[name])) for r in table if r[name]]
        for name in table[0]
        if name != "step"
    }
    assert series == {
        "loss": SERVER,
        "client/0/loss": [(step, 0.5) for step in (1, 2, 3, 4)],
        "client/1/loss": [(step, 1.5) for step in (1, 2, 3, 4)],
        "acc": [(4, 0.75)],
        "stage": [*((step, 1.0) for step in (1, 2, 3, 4)), (4, 2.0)],
    }
    hyperparameters = (tmp_path / "csv" / "version_0" / "hparams.yaml").read_text()
    assert yaml.safe_load(hyperparameters) == CONFIG


def test_tensorboard_reads_the_same_series_back(tmp_path):
    feed(track(tmp_path, "tensorboard"))
    events = EventAccumulator(str(tmp_path / "tensorboard" / "version_0")).Reload()
    assert set(events.Tags()["scalars"]) == {
        "loss",
        "client/0/loss",
        "client/1/loss",
        "acc",
        "stage",
    }
    assert [(event.step, event.value) for event in events.Scalars("loss")] == SERVER
    assert [(event.step, event.value) for event in events.Scalars("acc")] == [(4, 0.75)]


OWN = {"target": "lightning.pytorch.loggers:TensorBoardLogger", "name": "own"}


@pytest.mark.parametrize(("logger", "name"), [("tensorboard", "tensorboard"), (OWN, "own")])
def test_tensorboard_shows_the_figures(tmp_path, logger, name):
    tracker = track(tmp_path, logger)
    tracker.log(row(1, loss=1.0))
    Image.new("RGBA", (5, 4), (9, 8, 7, 255)).save(tmp_path / "curves.png")
    tracker.log_figures([tmp_path / "curves.png"])
    tracker.log_figures([tmp_path / "missing.png"])
    tracker.finish("success")
    events = EventAccumulator(str(tmp_path / name / "version_0")).Reload()
    (shown,) = events.Images("figures/curves")
    assert (shown.step, shown.width, shown.height) == (1, 5, 4)
    assert "TensorBoardLogger did not accept log_image" in tracker.problems[0]


def test_wandb_offline_holds_the_rows_and_the_config(tmp_path, capfd, caplog):
    with caplog.at_level(logging.INFO):
        feed(track(tmp_path, "wandb", wandb=WandbConfig(project="p")))
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    (path,) = folder.glob("*.wandb")
    records = complete_wandb_records(path)
    rows = [
        {item.key or item.nested_key[0]: json.loads(item.value_json) for item in r.history.item}
        for r in records
        if r.HasField("history")
    ]
    losses = [r for r in rows if "loss" in r]
    assert [(r["trainer/global_step"], r["loss"]) for r in losses] == SERVER
    assert [r["trainer/global_step"] for r in rows if "acc" in r] == [4]
    assert {name.split("/")[1] for r in rows for name in r if name[:7] == "client/"} == {"0", "1"}
    run = next(r.run for r in records if r.HasField("run"))
    assert (run.project, run.display_name) == ("p", "tiny")
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert {name: config[name] for name in CONFIG} == CONFIG
    assert [r.exit.exit_code for r in records if r.HasField("exit")] == [0]
    assert f"wandb sync {folder}" in caplog.text
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("config_mode", "key", "variable", "mode"),
    [
        ("auto", None, None, "offline"),
        ("auto", "env", None, "online"),
        ("auto", "netrc", None, "online"),
        ("auto", "old netrc", None, "online"),
        ("auto", "other host", None, "offline"),
        ("auto", "no password", None, "offline"),
        ("auto", "malformed", None, "offline"),
        ("auto", "env", "offline", "offline"),
        ("auto", "env", "disabled", "disabled"),
        ("auto", None, "online", "offline"),
        ("offline", "env", None, "offline"),
        ("online", "env", None, "online"),
        ("online", "netrc", "offline", "online"),
    ],
)
def test_wandb_goes_online_only_with_a_key(tmp_path, monkeypatch, config_mode, key, variable, mode):
    entries = {
        "netrc": "machine api.forge.coreweave.com login user password x\n",
        "old netrc": "machine api.wandb.ai login user password x\n",
        "other host": "machine example.org login user password x\n",
        "no password": "machine api.wandb.ai login user",
        "malformed": "machine api.wandb.ai login user password x\nnonsense",
    }
    if key == "env":
        monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    elif key:
        (tmp_path / "netrc").write_text(entries[key])
    if variable:
        monkeypatch.setenv("WANDB_MODE", variable)
    assert resolve_mode(WandbConfig(mode=config_mode)) == mode


def test_wandb_online_without_a_key_is_refused_instead_of_asking(tmp_path):
    config = TrackingConfig(loggers=("csv", "wandb"), wandb=WandbConfig(mode="online"))
    with pytest.raises(ConfigError, match=r"^tracking\.wandb\.mode=online: no API key") as refusal:
        build_loggers(config, tmp_path, "tiny", CONFIG)
    assert str(refusal.value).endswith("tracking.wandb.mode=offline.")


def test_a_resumed_online_run_keeps_its_id(tmp_path, monkeypatch):
    def run_id(name):
        return build_wandb_logger(WandbConfig(), tmp_path / name, "tiny", CONFIG).version

    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    first = run_id("a")
    assert first
    assert [run_id("a") == first, run_id("b") == first] == [True, False]


def test_loggers_come_in_the_configs_order_or_not_at_all(tmp_path):
    names = [type(logger).__name__ for logger in track(tmp_path, "tensorboard", "csv").loggers]
    assert names == ["TensorBoardLogger", "CSVLogger"]
    feed(track(tmp_path / "none"))
    assert [path.name for path in (tmp_path / "none").iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize("client_rows", [0, 1, 3])
def test_clients_beyond_client_rows_are_left_out_of_the_file_too(tmp_path, client_rows):
    feed(track(tmp_path, client_rows=client_rows))
    clients = [line["client"] for line in lines(tmp_path) if line["scope"] == "client"]
    assert sorted(clients) == sorted(list(range(client_rows)) * 4)


class Broken(Logger):
    """Fails from its third call on."""

    name = "broken"
    version = 0

    def __init__(self):
        self.calls = 0

    def log_hyperparams(self, params, *args, **kwargs):
        pass

    def log_metrics(self, metrics, step=None):
        self.calls += 1
        if self.calls >= 3:
            raise ConnectionError("no route\nto host")


def test_a_logger_that_breaks_is_reported_once_and_the_run_goes_on(tmp_path, caplog):
    broken, sound = Broken(), CSVLogger(tmp_path, name="csv", flush_logs_every_n_steps=1)
    tracker = Tracker(MetricsLog(tmp_path / "metrics.jsonl"), [broken, sound], 0, CONFIG)
    tracker.start()
    with caplog.at_level(logging.WARNING):
        for round_ in range(1, 7):
            tracker.log(row(round_, loss=1.0))
        tracker.finish("success")
    assert broken.calls == 3
    (warning,) = [r.getMessage() for r in caplog.records if r.name.startswith("coterie")]
    assert warning.startswith("Broken is left out from here on (ConnectionError: no route to host)")
    assert "tracking.loggers" in warning
    assert len(lines(tmp_path)) == 6
    assert len((tmp_path / "csv" / "version_0" / "metrics.csv").read_text().splitlines()) == 7


class Choosy(Broken):
    """A logger that takes numbers, but no model and no table."""

    def log_metrics(self, metrics, step=None):
        self.calls += 1

    def log_model_folder(self, folder, metadata):
        raise PermissionError("staging\nis read-only")

    log_table = log_model_folder


def test_a_logger_that_does_not_take_the_model_still_gets_the_final_numbers(tmp_path, caplog):
    choosy = Choosy()
    tracker = Tracker(MetricsLog(tmp_path / "metrics.jsonl"), [choosy], 0, CONFIG)
    tracker.start()
    with caplog.at_level(logging.WARNING):
        tracker.log(row(1, loss=1.0))
        tracker.log_model(tmp_path, {})
        tracker.log_model(tmp_path, {})
        tracker.log(row(1, acc=0.5))
    assert choosy.calls == 2
    assert tracker.loggers == [choosy]
    (problem,) = tracker.problems
    assert problem == (
        "Choosy did not accept log_model_folder (PermissionError: staging is "
        "read-only): the run's folder has the data, and scores are still logged"
    )


def test_a_resumed_tracker_continues_file_and_counter(tmp_path):
    def run(name, rounds, position=None):
        tracker = track(tmp_path / name, "csv")
        if position is not None:
            tracker.rewind(position)
        for round_ in rounds:
            tracker.log(row(round_, loss=1 / round_))
            positions[round_] = json.loads(json.dumps(tracker.position))
        tracker.finish("failed")

    positions = {}
    run("whole", (1, 2, 3, 4))
    run("cut", (1, 2, 3))
    run("cut", (3, 4), positions[2])
    whole, cut = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "cut"))
    assert cut == whole
    with (tmp_path / "cut" / "csv" / "version_1" / "metrics.csv").open() as file:
        assert [r["step"] for r in csv.DictReader(file)] == ["3", "4"]


def columns(path):
    with (path / "metrics.csv").open() as file:
        return set(csv.DictReader(file).fieldnames)


def test_two_phases_of_a_round_do_not_share_a_name(tmp_path):
    def run(name, *rows, position=None):
        tracker = track(tmp_path / name, "csv")
        if position is not None:
            tracker.rewind(position)
        for each in rows:
            tracker.log(each)
        reached = tracker.position
        tracker.finish("failed")
        return reached

    first = [row(1, hits=0.5, loss=1.0), row(1, client=0, hits=0.4)]
    second = [row(1, 1, phase="validation", hits=0.6, loss=1.5)]
    second += [row(1, 1, phase="validation", client=0, hits=0.7)]
    own = {"hits", "validation/hits", "client/0/hits", "client/0/validation/hits"}
    run("whole", *first, *second, row(2, hits=0.7))
    assert columns(tmp_path / "whole/csv/version_0") == {"step", "stage", "loss", *own}
    position = run("cut", *first)
    run("cut", *second, position=position)
    assert columns(tmp_path / "cut/csv/version_1") >= {"validation/hits", "loss"}


@pytest.mark.parametrize("name", ["RANK", "SLURM_PROCID", "LOCAL_RANK"])
def test_a_rank_of_lightning_silences_no_logger(tmp_path, monkeypatch, name):
    monkeypatch.setenv(name, "3")
    monkeypatch.setattr("lightning.pytorch.utilities.rank_zero_only.rank", 3)
    feed(track(tmp_path, "csv", "tensorboard"))
    assert (tmp_path / "csv/version_0/metrics.csv").read_text().count("\n") > 4
    assert list(tmp_path.glob("tensorboard/version_0/events*"))


def test_an_offline_run_that_is_resumed_keeps_its_id_and_group(tmp_path, monkeypatch):
    options = {"wandb": WandbConfig(mode="offline", group="mine")}
    runs = []
    for _ in range(2):
        logger = track(tmp_path, "wandb", **options).loggers[0]
        runs.append((logger.experiment.id, logger.experiment.group))
        logger.finalize("failed")
    assert runs[0] == runs[1]
    assert runs[0][1] == "mine"


def test_an_agents_id_is_that_of_one_run(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("WANDB_RUN_ID", "agents1")
    config = WandbConfig(mode="offline")
    folders = [tmp_path / name for name in ("a", "b", "c", "a")]
    ids = [build_wandb_logger(config, folder, "tiny", CONFIG)._id for folder in folders]
    assert ids[0] == ids[3] == "agents1"
    assert len(set(ids)) == 3
    assert "WANDB_RUN_ID=agents1 is the id of an earlier run" in caplog.text


@pytest.mark.parametrize("value", ["true", "1", "TRUE"])
def test_wandb_can_be_switched_off_by_its_variable(monkeypatch, value):
    monkeypatch.setenv("WANDB_DISABLED", value)
    assert resolve_mode(WandbConfig()) == "disabled"
    monkeypatch.setenv("WANDB_DISABLED", "false")
    assert resolve_mode(WandbConfig()) == "offline"
