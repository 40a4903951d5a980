"""Whole runs under masks: the files of runs without, what the driver sees, and what is refused."""

import json
from pathlib import Path

import pytest

from coterie import Federation
from coterie.checkpoints.checkpoint import has_checkpoint
from coterie.commands.compose import compose
from coterie.errors import ConfigError, RunError
from coterie.execution.events import CallDone, ClientResult
from coterie.execution.serial import SerialBackend
from tests.builders.every_method import small
from tests.builders.runs import SERIAL, model_files

MASKED = "privacy.secure_aggregation=true"


def train(folder, *keys):
    return Federation(compose(*keys, *SERIAL, f"run_dir={folder}")).run()


def rows(folder):
    lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if "bytes/up" in json.dumps(row)]


@pytest.mark.parametrize(
    "choice",
    ["fedavg", *(pytest.param(c, marks=pytest.mark.slow) for c in ("concord", "fedsc"))],
)
def test_a_run_under_masks_leaves_the_same_model(choice, tmp_path, monkeypatch):
    train(tmp_path / "plain", *small(choice))
    seen, steps = [], []
    execute, exchange = SerialBackend.execute, SerialBackend.exchange

    def watched(self, request):
        for event in execute(self, request):
            seen.append(event)
            yield event

    def noted(self, stage, step, messages):
        steps.append(step)
        return exchange(self, stage, step, messages)

    monkeypatch.setattr(SerialBackend, "execute", watched)
    monkeypatch.setattr(SerialBackend, "exchange", noted)
    train(tmp_path / "masked", *small(choice), MASKED)
    assert model_files(tmp_path / "masked") == model_files(tmp_path / "plain")
    calls = sum(isinstance(event, CallDone) for event in seen)
    assert steps == ["advertise", "share", "mask", "reveal"] * calls
    for event in seen:
        if isinstance(event, CallDone):
            assert event.sums == {}
        if isinstance(event, ClientResult):
            assert (event.updates, event.peer_messages, event.gathered.fields) == ({}, {}, ())
    assert "bytes/up/secure_aggregation" in json.dumps(rows(tmp_path / "masked"))
    assert "bytes/down/secure_aggregation" in json.dumps(rows(tmp_path / "masked"))


def test_a_resumed_run_under_masks_leaves_the_same_model(tmp_path):
    keys = (*small("fedavg"), "checkpoint.every=1")
    train(tmp_path / "plain", *keys, "method.rounds=3")
    train(tmp_path / "masked", *keys, "method.rounds=2", MASKED)
    train(tmp_path / "masked", *keys, "method.rounds=3", MASKED, "resume=true")
    assert model_files(tmp_path / "masked") == model_files(tmp_path / "plain")


def test_too_few_clients_end_the_phase_with_a_checkpoint(tmp_path):
    drops = ("participation.dropout_rate=0.5", "seed=3")  # two take part in round 1, then one
    with pytest.raises(RunError) as caught:
        train(tmp_path / "run", *small("fedavg"), MASKED, *drops)
    assert str(caught.value) == (
        "Round 2: 1 of 1 clients are left, and privacy.secure_aggregation needs 2 to unmask their "
        "sum; correct what fails, or let more clients take part, and go on with resume=true."
    )
    assert has_checkpoint(tmp_path / "run" / "checkpoints")


@pytest.mark.parametrize(
    ("keys", "round_"),
    [
        (("participation.count=1",), 1),
        (("participation.fraction=0.2",), 1),
        (("partition=iid", "partition.clients=1"), 1),
        (("participation.availability=[[0,1,2],[],[1]]", "method.rounds=4"), 3),
        (("participation.device_failure_rate=0.8",), 1),
    ],
)
def test_a_sum_of_one_client_is_refused_before_the_run(keys, round_, tmp_path):
    with pytest.raises(ConfigError) as caught:
        train(tmp_path / "run", *small("fedavg"), MASKED, *keys)
    assert str(caught.value) == (
        f"privacy.secure_aggregation=true: 1 client takes part in round {round_}, but a sum hides "
        "a client only among 2 or more; let more clients take part."
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("choice", "keys", "sentence"),
    [
        (
            "kfed",
            (),
            "clients send the gathered tensor 'centroids' in phase 'centroids', which is not a sum",
        ),
        ("ccfc", ("method.warmup_rounds=1",), "clients send the gathered tensor 'centroids'"),
        ("dec", (), "clients send the gathered tensor 'centroids' in phase 'centroids'"),
        ("fedmcc", ("method.cluster_heads=2",), "clients send the gathered tensor 'head_losses'"),
        (
            "cfcl",
            (),
            "clients send the peer message 'reserve_samples' in phase 'push', which is not a sum",
        ),
        ("fedavg", ("aggregation.rule=median",), "aggregation.rule=median: it needs each client's"),
    ],
)
def test_what_is_no_sum_is_refused_before_the_run(choice, keys, sentence, tmp_path):
    with pytest.raises(ConfigError, match=sentence):
        train(tmp_path / "run", *small(choice), MASKED, *keys)
    assert not (tmp_path / "run").exists()
