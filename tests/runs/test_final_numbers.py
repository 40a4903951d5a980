"""The final numbers of a run are the last ones everywhere that people look."""

import csv
import json
import math

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from coterie import Federation, compose
from tests.builders.wandb_records import complete_wandb_records

RUN = (
    "experiment=fedmcc_digits",
    "cluster=serial",
    "executor=bare",
    "encoder=mlp",
    "data.limit=300",
    "method.representation_rounds=1",
    "method.clustering_rounds=2",
    "method.representation_epochs=1",
    "method.clustering_epochs=1",
    "evaluation.every=1",
    "evaluation.knn_k=5",
    "evaluation.figures=false",
    "tracking=all",
    "tracking.wandb.mode=offline",
    "tracking.progress=none",
)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("final") / "run"
    return Federation(compose(*RUN, f"run_dir={folder}")).run()


@pytest.fixture(scope="module")
def final(ran):
    """The final metrics of summary.json by one name each."""
    groups = json.loads((ran.run_dir / "summary.json").read_text())["metrics"]
    names = {f"{group}/{name}": value for group, of in groups.items() for name, value in of.items()}
    assert {"clustering/acc", "clustering/nmi", "linear/acc", "knn/acc", "kmeans_raw/acc"} <= {
        *names
    }
    return names


def rows(ran):
    return [json.loads(line) for line in (ran.run_dir / "metrics.jsonl").read_text().splitlines()]


def test_the_last_row_of_metrics_jsonl_has_them(ran, final):
    *earlier, last = rows(ran)
    assert (last["scope"], last["status"], last["phase"]) == ("run", "completed", "final")
    assert (last["round"], last["stage"]) == (3, "clustering")
    assert {name: last[name] for name in final} == final
    assert last["total/bytes/up"] == sum(
        row.get("bytes/up", 0) for row in earlier if row["scope"] == "server"
    )
    assert last["total/seconds/total"] > last["total/seconds/training"] > 0
    assert all(row["scope"] != "run" for row in earlier)


def test_a_key_has_one_name_over_all_stages(ran):
    table = list(csv.DictReader(next((ran.run_dir / "csv").rglob("metrics.csv")).open()))
    assert {row["stage"] for row in table if row["loss"]} == {"1", "2"}
    scored = [(int(row["step"]), row["stage"]) for row in table if row["clustering/acc"]]
    assert scored == [(1, "1"), (2, "2"), (3, "2")]
    assert not [
        name for name in table[0] if name.startswith(("representation/", "clustering/loss"))
    ]


def test_csv_ends_with_them(ran, final):
    table = list(csv.DictReader(next((ran.run_dir / "csv").rglob("metrics.csv")).open()))
    assert {name: float(table[-1][name]) for name in final} == final


def test_tensorboard_ends_with_them(ran, final):
    folder = next((ran.run_dir / "tensorboard").iterdir())
    events = EventAccumulator(str(folder)).Reload()
    for name, value in final.items():
        assert math.isclose(events.Scalars(name)[-1].value, value, rel_tol=1e-6)


def test_wandb_has_them_as_the_summary(ran, final):
    (path,) = (ran.run_dir / "wandb").glob("offline-run-*/*.wandb")
    shown = {}
    for record in complete_wandb_records(path):
        if record.HasField("history"):
            items = record.history.item
            shown |= {i.key or i.nested_key[0]: json.loads(i.value_json) for i in items}
        for item in record.summary.update if record.HasField("summary") else ():
            shown[item.key or item.nested_key[0]] = json.loads(item.value_json)
    assert {name: shown[name] for name in final} == final
    assert shown["total/bytes/down"] == rows(ran)[-1]["total/bytes/down"]
