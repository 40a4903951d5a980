"""The user's own metrics: their values, and what becomes of one that fails."""

import json

import numpy as np
import pytest
import torch

from coterie import Federation
from coterie.commands.compose import compose
from coterie.contract.metric import Metric
from coterie.evaluation.custom_metrics import own_scores
from coterie.evaluation.plain_neighbours import PlainNeighbours
from coterie.evaluation.scorer import own_in_words
from tests.builders.observers import Silent
from tests.builders.runs import COMMAND


class LargestShare(Metric):
    def __call__(self, embedding, assignments, labels):
        return np.bincount(assignments).max() / len(labels)


class Gives(Metric):
    def __init__(self, value):
        self.value = value

    def __call__(self, embedding, assignments, labels):
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


GIVEN = torch.zeros(4, 2), np.array([0, 1, 1, 1]), np.array([0, 0, 1, 1])


@pytest.mark.parametrize("value", [TypeError("no"), RuntimeError("{}%s"), None, "many", [1, 2]])
def test_one_that_fails_is_left_out_and_told(value, caplog):
    found = own_scores((Gives(value), LargestShare()), *GIVEN)
    assert found == {"custom": {"largest_share": 0.75}}
    assert caplog.messages == [
        "custom/gives failed and is left out; correct it, and measure it with coterie evaluate."
    ]
    assert caplog.records[0].exc_info is not None  # so that the log shows where


def test_without_any_there_is_no_group():
    assert own_scores((), *GIVEN) == {}
    assert own_in_words({}) == ""


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_is_finished_whatever_they_do(tmp_path, monkeypatch, fails):
    def call(self, *given):
        if fails:
            raise TypeError("no array")
        return 0.25

    monkeypatch.setattr(PlainNeighbours, "__call__", call)
    metric = "{target: 'coterie.evaluation.plain_neighbours:PlainNeighbours', k: 3}"
    view, keys = Silent(), (f"evaluation.metrics=[{metric}]", f"run_dir={tmp_path / 'run'}")
    Federation(compose(*COMMAND, *keys), view).run()
    metrics = json.loads((tmp_path / "run" / "summary.json").read_text())["metrics"]
    assert metrics.get("custom") == (None if fails else {"knn_3": 0.25})
    assert ("custom/knn_3=0.25" in view.notes) is not fails
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()
