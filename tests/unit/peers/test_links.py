"""How long messages would take, and where a run says so."""

import json

import pytest

from coterie.commands.compose import compose
from coterie.config.schema import LinksConfig
from coterie.peers.links import modelled_seconds
from coterie.run.federation import Federation
from tests.builders.observers import Silent


def test_the_papers_figures() -> None:
    """6.272 ms for an image of 28×28 pixels, 0.512 ms for 16 numbers of 32 bits, at 1 Mbit/s."""
    links = LinksConfig(peer_mbit_s=1.0)
    assert modelled_seconds({"down": 9, "up": 9, "peer": 28 * 28}, links) == {"peer": 0.006272}
    sent = {"down": 0, "up": 0, "peer": 16 * 4}
    assert modelled_seconds(sent, links) == {"peer": pytest.approx(0.000512)}
    both = LinksConfig(up_mbit_s=2.0, down_mbit_s=4.0)
    assert modelled_seconds({"down": 10**6, "up": 10**6, "peer": 1}, both) == {
        "down": 2.0,
        "up": 4.0,
    }
    assert modelled_seconds(sent, LinksConfig()) == {}


RUN = (
    "experiment=cfcl_digits",
    "cluster=serial",
    "executor=bare",
    "data.limit=200",
    "encoder.width=8",
    "method.total_steps=8",
    "method.aggregate_every=4",
    "method.pull_every=4",
    "method.batch_size=8",
    "evaluation.every=1",
    "evaluation.figures=false",
    "evaluation.kmeans_baseline=false",
    "evaluation.knn=false",
)


def ran(run_dir, *overrides):
    Federation(compose(*RUN, *overrides, f"run_dir={run_dir}"), Silent()).run()
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").open()]
    server = [row for row in rows if row["scope"] == "server"]
    return server, json.loads((run_dir / "summary.json").read_text())


def test_a_run_says_what_went_between_devices_and_scores_its_representation(tmp_path) -> None:
    rows, summary = ran(tmp_path / "run")
    links = 70  # 10 devices of 7 neighbours
    assert summary["items_peer"] == {"reserve_samples": links * 10, "samples": 2 * links * 5}
    assert summary["bytes"]["peer"] == 64 * sum(summary["items_peer"].values())
    assert summary["modelled_seconds"] == {
        way: pytest.approx(8 * summary["bytes"][way] / 1e6) for way in ("up", "peer")
    }
    for way in ("up", "peer"):
        spent = sum(row[f"modelled_seconds/{way}"] for row in rows)
        assert spent == pytest.approx(summary["modelled_seconds"][way])
    pulls = [row["items/peer/samples"] for row in rows if row["phase"] == "pull"]
    assert pulls == [links * 5] * 2
    ends = [row for row in rows if row["phase"] == "aggregate"]
    assert [row["round"] for row in ends] == [1, 2, 3]
    assert [0 <= row.get("linear/acc", -1) <= 1 for row in ends] == [True, True, False]
    assert 0 <= summary["metrics"]["linear"]["acc"] <= 1
    assert [row["time_step"] for row in rows if row["phase"] == "train"] == [3, 7, 8]
    assert [row["steps"] for row in rows if row["phase"] == "train"] == [3, 4, 1]
    assert [row["time_step"] for row in ends] == [3, 7, 8]


def test_the_probe_between_rounds_is_the_one_at_the_end(tmp_path) -> None:
    """A run of 7 steps ends with the model that one of 8 has after its second round."""
    last = ran(tmp_path / "a", "method.total_steps=7")[1]["metrics"]["linear"]
    rows, _ = ran(tmp_path / "b", "method.total_steps=8")
    (second,) = [row for row in rows if row["phase"] == "aggregate" and row["round"] == 2]
    assert {name: second[f"linear/{name}"] for name in last} == last
    untouched = ran(tmp_path / "c", "evaluation.linear_probe_between=false")[0]
    assert not any(key.startswith("linear/") for row in untouched for key in row)


def test_nothing_is_modelled_unless_it_is_asked_for(tmp_path) -> None:
    rows, summary = ran(
        tmp_path / "run", "links.up_mbit_s=null", "links.peer_mbit_s=null", "method.exchange=none"
    )
    assert not {"items_peer", "modelled_seconds"} & set(summary)
    assert not any(key.startswith(("items/", "modelled_seconds/")) for row in rows for key in row)
