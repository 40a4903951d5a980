"""The steps of `make gpu`: none ends the rest, and none outlasts its time."""

import sys
import time
from pathlib import Path

import pytest

from coterie.studies.paper_plan import read_study_plan
from tests.gpu.__main__ import MEASURED, STUDIES, Session, steps
from tests.gpu.steps import Step, run_steps, table

CHECKPOINTING = """
import signal, sys, time
signal.signal(signal.SIGINT, lambda *_: (print("checkpoint | written"), sys.exit(130)))
print("ready", flush=True)
time.sleep(60)
"""


def python(code: str) -> tuple[str, ...]:
    return sys.executable, "-c", code


def test_a_failed_step_ends_no_other_and_a_late_one_is_interrupted(tmp_path: Path) -> None:
    found = run_steps(
        [
            Step("broken", python("import os; print(os.environ['MARK']); raise SystemExit(7)")),
            Step("missing", ("/no/such/program",)),
            Step("late", python(CHECKPOINTING), limit=3.0),
            Step("good", python("print('fine')")),
        ],
        time.monotonic() + 60,
        tmp_path,
        {"MARK": "here"},
    )
    assert [(o.name, o.result, o.code, o.note) for o in found[::3]] == [
        ("broken", "failed", 7, "here"),
        ("good", "done", 0, "fine"),
    ]
    assert (found[1].result, found[1].code) == ("failed", None)
    assert (found[2].result, found[2].code) == ("out of time", 130)
    assert found[2].seconds < 30
    assert (tmp_path / "late.log").read_text() == "ready\ncheckpoint | written\n"
    assert "| late | out of time |" in table(found)
    assert "checkpoint / written |" in table(found)


def test_nothing_starts_when_the_time_is_over(tmp_path: Path) -> None:
    (outcome,) = run_steps([Step("a", python("print(1)"))], time.monotonic(), tmp_path, {})
    assert outcome.result == "not started"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("scale", ["paper", "smoke"])
def test_the_cells_are_those_of_the_studies(scale, tmp_path: Path) -> None:
    found = {step.name: step for step in steps(Session(device="cpu", scale=scale), tmp_path)}
    assert list(found) == ["tests", *MEASURED, *STUDIES]
    for name in STUDIES:
        *_, module = found[name].command[:3]
        assert module == "coterie.jobs.study"
        plan = read_study_plan(found[name].command[3:])
        cells = plan.cells(None)
        assert plan.seeds == (0,)
        assert plan.file == tmp_path / "results" / f"{name}-{scale}.csv"
        assert all("cluster=serial" in variant.overrides for variant in cells)
