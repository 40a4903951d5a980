"""A tracker that cannot be reached costs the run a warning and some seconds, never more."""

import json
import logging
import time

import pytest

from coterie.jobs.train import main
from coterie.tracking import wandb_logger
from coterie.tracking.wandb_logger import WandbRunLogger
from tests.builders.runs import COMMAND

LOGGED = (*COMMAND, "tracking.loggers=[wandb,csv]")


@pytest.fixture(autouse=True)
def no_account(tmp_path, monkeypatch):
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


class GoesAway(WandbRunLogger):
    """W&B that cannot be reached any more from the third row on."""

    rows = 0

    def log_metrics(self, metrics, step=None):
        self.rows += 1
        if self.rows >= 3:
            raise ConnectionError("no route\nto host")
        super().log_metrics(metrics, step)


def ended(run_dir, caplog):
    """The summary, and the one warning, which the summary has as well."""
    summary = json.loads((run_dir / "summary.json").read_text())
    (warning,) = [r.getMessage() for r in caplog.records if "is left out" in r.getMessage()]
    assert summary["status"] == "completed"
    assert summary["failures"] == [warning.rstrip(".")]
    assert warning.endswith("repair it, or remove it from tracking.loggers, before the next run.")
    assert next((run_dir / "csv").rglob("metrics.csv")).read_text().count("\n") > 1
    return warning


def test_wandb_is_lost_in_mid_run(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(wandb_logger, "WandbRunLogger", GoesAway)
    run_dir = tmp_path / "run"
    with caplog.at_level(logging.WARNING):
        assert main([*LOGGED, f"run_dir={run_dir}", "tracking.wandb.mode=offline"]) == 0
    warning = ended(run_dir, caplog)
    assert warning.startswith("GoesAway is left out from here on (ConnectionError: no route to h")
    assert list((run_dir / "wandb").glob("offline-run-*"))


def test_a_server_that_does_not_answer_delays_the_start_by_its_limit(tmp_path, monkeypatch, caplog):
    assert wandb_logger._START_TIMEOUT_S <= 20
    monkeypatch.setattr(wandb_logger, "_START_TIMEOUT_S", 2.0)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    run_dir, started = tmp_path / "run", time.monotonic()
    with caplog.at_level(logging.WARNING):
        assert main([*LOGGED, f"run_dir={run_dir}", "tracking.wandb.mode=online"]) == 0
    seconds = time.monotonic() - started
    assert ended(run_dir, caplog).startswith("WandbRunLogger is left out from here on (CommError:")
    assert seconds < 20, seconds
