"""A signal while a round is evaluated: the run stops there, and its round is in the metrics."""

import json
import os
import signal

import pytest

from coterie import Federation
from coterie.commands.compose import compose
from coterie.errors import InterruptedRunError
from coterie.execution import predictor
from tests.builders.observers import Silent
from tests.builders.runs import TINY

RUN = (*TINY, "evaluation.every=1", "evaluation.batch_size=16")
INTERRUPTED = 2


def train(folder, *overrides):
    view = Silent()
    Federation(compose(*RUN, f"run_dir={folder}", *overrides), view).run()
    return view


def timeless(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").open()]
    return [{k: v for k, v in row.items() if "seconds" not in k} for row in rows]


def without_scores(row):
    own = row["round"] == INTERRUPTED and row["scope"] == "server"
    return {k: v for k, v in row.items() if not (own and k.startswith("clustering/"))}


@pytest.fixture
def predicted(monkeypatch):
    """Sends SIGINT at the second evaluation's third batch; the batches that were predicted."""
    batches, real = [], predictor.Clusterer.forward

    def forward(model, samples):
        batches.append(len(samples))
        if len(batches) == 13 + 3:  # 200 samples in batches of 16
            os.kill(os.getpid(), signal.SIGINT)
        return real(model, samples)

    monkeypatch.setattr(predictor.Clusterer, "forward", forward)
    return batches


def test_the_resumed_run_has_all_rows_of_an_undisturbed_one(tmp_path, predicted, monkeypatch):
    with pytest.raises(InterruptedRunError, match="SIGINT came"):
        train(tmp_path / "run")
    assert len(predicted) == 13 + 3  # it stopped before the next batch
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("interrupted", INTERRUPTED)
    monkeypatch.undo()
    train(tmp_path / "run", "resume=true")
    train(tmp_path / "whole")
    ours, whole = timeless(tmp_path / "run"), timeless(tmp_path / "whole")
    assert ours == [without_scores(row) for row in whole]
    assert any("clustering/acc" in row for row in whole if row["round"] == INTERRUPTED)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    sent = sum(row["bytes/up"] for row in ours if row["scope"] == "server")
    assert sent == summary["bytes"]["up"]


def test_the_view_says_what_it_waits_for(tmp_path, predicted):
    view = Silent()
    with pytest.raises(InterruptedRunError):
        Federation(compose(*RUN, f"run_dir={tmp_path / 'run'}"), view).run()
    assert view.notes[-1] == (
        "Stopping after a checkpoint; a second Ctrl-C or SIGTERM ends the run at once."
    )
