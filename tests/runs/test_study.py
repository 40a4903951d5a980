"""`coterie study` at the scale smoke: a row of one, and all with the slow tests."""

import csv
import json
import re
from pathlib import Path

import pytest

from coterie.jobs.study import main
from coterie.studies.paper_plan import StudyConfig, StudyPlan
from coterie.studies.paper_study import studies

RESUMED = "ccfc_5"
QUICK = "cfcl_6"


def run(name: str, out: Path, *rows: str) -> list[dict[str, str]]:
    assert main([f"study={name}", "scale=smoke", f"out={out}", *rows]) == 0
    with (out / f"{name}-smoke.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def check(name: str, rows: list[dict[str, str]], only: tuple[str, ...] = ()) -> None:
    plan = StudyPlan(StudyConfig(study=name, scale="smoke", rows=only))
    cells = {(cell.row, cell.column, "0") for cell in plan.cells(None).values()}
    assert {(row["row"], row["column"], row["seed"]) for row in rows} == cells
    final = [metric for metric in plan.study.metrics.values() if " until " not in metric]
    for row in rows:
        assert all(row[metric] for metric in final)
        assert float(row["seconds/total"]) > 0
        assert re.fullmatch(r"\d+ cores of .+|NVIDIA .+", row["device"])
        assert re.fullmatch(r"[0-9a-f]{12}", row["config"])
        assert row["commit"]


def test_a_study_runs(tmp_path: Path) -> None:
    check(QUICK, run(QUICK, tmp_path / "out", "rows=[explicit]"), ("explicit",))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [name for name in studies() if name != RESUMED])
def test_every_study_runs(name: str, tmp_path: Path) -> None:
    check(name, run(name, tmp_path / "out"))


@pytest.mark.slow
def test_finished_cells_are_not_run_again_and_keep_their_commit(tmp_path, capsys) -> None:
    one = (f"study={RESUMED}", "scale=smoke", f"out={tmp_path}", f"results={tmp_path / 'data'}")
    assert main([*one, "rows=['λ=0.001']"]) == 0
    file = tmp_path / "data" / f"{RESUMED}-smoke.csv"
    file.unlink()
    (summary,) = tmp_path.glob("cells/runs/*/summary.json")
    before = json.loads(summary.read_text()) | {"commit": "before"}
    summary.write_text(json.dumps(before))
    capsys.readouterr()
    assert main(one) == 0
    assert "2 runs, 1 of them completed before" in capsys.readouterr().out
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    check(RESUMED, rows)
    commits = {row["row"]: row["commit"] for row in rows}
    assert commits["λ=0.001"] == "before"
    assert commits["λ=1"] not in ("before", "")
