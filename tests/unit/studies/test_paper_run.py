"""The exit code of a study, of its preparation and its cells."""

import pytest

from coterie.studies import paper_run
from coterie.studies.paper_plan import StudyConfig, StudyPlan

CODES = {(0, 0): 0, (3, 0): 3, (0, 3): 3, (3, 3): 3, (3, 1): 1, (1, 0): 1}


@pytest.mark.parametrize("codes", CODES)
def test_clients_that_the_preparation_dropped_are_told(codes, monkeypatch):
    prepared, cells = codes
    monkeypatch.setattr(paper_run, "_prepare", lambda plan: prepared)
    monkeypatch.setattr(paper_run, "_run_cells", lambda plan: cells)
    plan = StudyPlan(StudyConfig(study="cpcfl_8", scale="smoke"))
    assert paper_run.run_study(plan) == CODES[codes]
