"""The choice of a search for hyperparameters, from its runs' own files."""

import math

import pytest

from coterie.studies.tune_table import TrialResult, TuneTable
from coterie.tracking.metrics_log import MetricsLog, MetricsRow
from coterie.tracking.run_records import read_run
from coterie.tracking.summary import Summary

NAME = "clustering/nmi"


def trial(folder, final, *measured):
    """A completed run with measurements between rounds, and of its final model if it has one."""
    log = MetricsLog(folder / "metrics.jsonl")
    for round_, value in enumerate(measured, 1):
        place = {"round": round_, "stage": "s", "phase": "p", "step": 0}
        log.append(MetricsRow(**place, values={} if value is None else {NAME: value}))
    Summary(
        status="completed",
        method="M",
        dataset="d",
        rounds=len(measured),
        clients=2,
        seed=0,
        commit="0123abcd",
        device="2 cores",
        bytes={"up": 0},
        metrics={} if final is None else {"clustering": {"nmi": final}},
    ).write(folder / "summary.json")
    return TrialResult({"x": folder.name}, read_run(folder.name, 0, folder), NAME)


VALUES = {
    "of the final model": ((0.7, 0.2, 0.9), 0.7),
    "of the last evaluation, without a final one": ((None, 0.2, 0.9, None), 0.9),
    "none, as it diverged in the end": ((math.nan, 0.2, 0.9), None),
    "none, as it diverged before the last evaluation": ((None, 0.9, math.nan), None),
    "none at all": ((None, None), None),
}


@pytest.mark.parametrize("kind", VALUES)
def test_the_objective_of_a_trial_is(kind, tmp_path):
    numbers, expected = VALUES[kind]
    assert trial(tmp_path, *numbers).value == expected


def test_a_trial_that_diverged_is_not_chosen(tmp_path):
    trials = [trial(tmp_path / "a", math.nan, 0.9), trial(tmp_path / "b", 0.5, 0.4)]
    table = TuneTable.of(trials, NAME, lower=False, blind=False)
    assert table.chosen is not None
    assert table.chosen.record.label == "b"
    alone = TuneTable.of(trials[:1], NAME, lower=False, blind=False)
    assert alone.sentence == f"None is chosen: no trial has completed with {NAME}."
    assert "a" in alone.csv()


@pytest.mark.parametrize(("name", "told"), [("clustering_test/nmi", True), (NAME, False)])
def test_a_choice_by_the_test_set_is_told(name, told, tmp_path):
    table = TuneTable((trial(tmp_path / "a", 0.5, 0.4),), name, lower=False, blind=False)
    assert ("its own score is too good" in table.sentence) is told


def test_of_trials_that_are_all_equal_none_is_chosen(tmp_path):
    trials = [trial(tmp_path / name, 0.5, 0.4) for name in "ab"]
    table = TuneTable.of(trials, NAME, lower=False, blind=False)
    assert table.chosen is None
    assert table.sentence == (
        f"None is chosen: all 2 trials have the same {NAME}, 0.5, so take another objective or "
        "space."
    )
    assert TuneTable.of(trials[:1], NAME, lower=False, blind=False).chosen is trials[0]
