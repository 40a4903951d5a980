"""Runs read back from their directories, damaged ones too."""

import json

import pytest

from coterie.tracking.run_records import is_completed, read_run

WHOLE = {
    "status": "completed",
    "rounds": 2,
    "commit": "0123abcd",
    "device": "2 cores",
    "metrics": {"clustering": {"acc": 0.9, "nmi": None}},
    "bytes": {"up": 3},
    "seconds": {"total": 1.5},
}


def test_a_completed_run_has_its_numbers_and_its_origin(tmp_path):
    (tmp_path / "summary.json").write_text(json.dumps(WHOLE))
    run = read_run("a", 1, tmp_path)
    assert run.completed
    assert run.numbers == {
        "clustering/acc": 0.9,
        "bytes/up": 3,
        "seconds/total": 1.5,
        "rounds": 2,
    }
    assert (run.scores, run.unscored) == (("clustering/acc",), ("clustering/nmi",))
    assert (run.commit, run.device) == ("0123abcd", "2 cores")


RUBBISH = {
    "no JSON": "{",
    "no object": "[]",
    "another status": json.dumps({**WHOLE, "status": "splendid"}),
    "no status": json.dumps({"rounds": 2}),
    "no rounds": json.dumps({"status": "completed"}),
    "no commit": json.dumps({name: part for name, part in WHOLE.items() if name != "commit"}),
    "rounds in words": json.dumps({**WHOLE, "rounds": "two"}),
    "rounds beyond a float": json.dumps({**WHOLE, "rounds": 10**400}),
    "nested deep": "[" * 100_000,
}


@pytest.mark.parametrize("kind", RUBBISH)
def test_a_damaged_summary_is_that_of_a_run_that_has_not_ended(kind, tmp_path):
    (tmp_path / "summary.json").write_text(RUBBISH[kind])
    assert read_run("a", 1, tmp_path).status == "not started"
    (tmp_path / "config.yaml").touch()
    assert read_run("a", 1, tmp_path).status == "interrupted"
    assert not is_completed(tmp_path / "summary.json")


def test_rows_and_numbers_that_no_run_writes_are_left_out(tmp_path):
    scores = {"clustering": {"acc": 0.5, "huge": 10**400}}
    (tmp_path / "summary.json").write_text(json.dumps({**WHOLE, "metrics": scores}))
    rows = [
        {"scope": "server", "round": 1, "stage": "a", "loss": 1.0, "dropped": "x", "nmi": None},
        {"scope": "server", "round": 2, "stage": "a", "loss": [1], "x_bytes": 10**400},
        {"scope": "server", "round": "two"},
        {"scope": "server", "round": 10**400},
        {"scope": "server"},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    run = read_run("a", 1, tmp_path)
    assert "clustering/huge" not in run.numbers
    assert [sorted(row) for row in run.rows] == [
        ["loss", "nmi", "round", "scope", "stage"],
        ["round", "scope", "stage"],
    ]
    assert run.dropped == 0
