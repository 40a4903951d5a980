"""What is scored where data stays with its clients: who was left out, the best, what is refused."""

import json

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from coterie.commands.compose import compose
from coterie.execution.serial import SerialBackend
from coterie.jobs import audit, evaluate
from coterie.run.federation import Federation
from tests.builders.observers import Silent
from tests.builders.runs import SMALL


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    """Two folders of pictures, 40 digits each, a folder for each class in them."""
    folder, digits = tmp_path_factory.mktemp("sites"), load_digits()
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    for row in range(80):
        place = folder / "ab"[row % 2] / f"c{digits.target[row]}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[row]).save(place / f"{row}.png")
    return folder


def train(sites, run_dir, *overrides):
    config = compose(
        *SMALL,
        "cluster=serial",
        "executor=bare",
        "data=node_local",
        "~data.limit",
        f"run_dir={run_dir}",
        f"data.clients={{site_a: {sites}/a, site_b: {sites}/b}}",
        "data.source={target: coterie.datamodules.folders:ClassFolders, mode: L}",
        "method.clusters=10",
        *overrides,
    )
    return Federation(config, Silent()).run()


def test_a_client_that_cannot_be_reached_is_a_failure(sites, tmp_path, monkeypatch):
    real = SerialBackend.tally

    def second_is_gone(backend, server, clients):
        return [real(backend, server, clients)[0], None]

    monkeypatch.setattr(SerialBackend, "tally", second_is_gone)
    result = train(sites, tmp_path / "run", "evaluation.every=0")
    failure = "round 4, evaluation: client 1 failed (its actor or node is gone); not in the scores"
    assert (result.exit_code, result.failures) == (3, (failure,))
    events = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    assert [(e["client"], e["failure"]) for e in events if e["scope"] == "event"] == [(1, failure)]


def test_the_best_is_kept_by_the_clients_own_counts(sites, tmp_path, capsys):
    result = train(sites, tmp_path / "run", "evaluation.every=1", "checkpoint.best=acc")
    assert result.exit_code == 0
    assert list((tmp_path / "run" / "checkpoints").glob("*best*"))
    assert evaluate.main([f"run={tmp_path / 'run'}", "checkpoint=best"]) == 2
    assert capsys.readouterr().err == (
        f"run={tmp_path / 'run'}: its data stays with its clients and is scored by the run itself; "
        "read its summary.json.\n"
    )


def test_silos_under_masks_leave_the_same_model_and_their_audit_attacks_nothing(
    sites, tmp_path, capsys
):
    keys = ("method.cluster_heads=1", "evaluation.every=0")
    train(sites, tmp_path / "plain", *keys)
    train(sites, tmp_path / "masked", *keys, "privacy.secure_aggregation=true")
    weights = [
        (tmp_path / name / "model" / "model.safetensors").read_bytes()
        for name in ("plain", "masked")
    ]
    assert weights[0] == weights[1]
    assert audit.main([f"run={tmp_path / 'masked'}"]) == 0
    assert "The data stays with its clients" in " ".join(capsys.readouterr().out.split())
    record = json.loads((tmp_path / "masked" / "audit.json").read_text())
    slots = [sent for sent in record["messages"] if sent["type"] == "slot"]
    assert {(sent["samples"], sent["summed"]) for sent in slots} == {(80, 2)}
    assert record["membership"] == {}


@pytest.mark.parametrize("pictures", [1, 3])
def test_a_site_of_one_picture_or_of_equal_ones_is_a_site(sites, tmp_path, pictures):
    for number in range(pictures):
        (tmp_path / "few" / "c0").mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), 90).save(tmp_path / "few" / "c0" / f"{number}.png")
    config = compose(
        "experiment=kmeans",
        "cluster=serial",
        "data=node_local",
        f"run_dir={tmp_path / 'run'}",
        f"data.clients={{site_a: {sites}/a, few: {tmp_path}/few}}",
        "data.source={target: coterie.datamodules.folders:ClassFolders, mode: L}",
        "method.clusters=3",
        "evaluation.figures=false",
    )
    assert Federation(config, Silent()).run().failures == ()
