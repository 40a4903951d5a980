"""`coterie tune` on real runs: whole, killed and resumed, interrupted, on actors."""

import csv
import json
import signal
from functools import partial

import pytest
from PIL import Image

from coterie.jobs.tune import main
from tests.builders import comparisons as builders
from tests.builders.comparisons import alive, until

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

TINY = (
    "experiment=orchestra_digits",
    "space={method.learning_rate: [0.003, 0.03], encoder.width: [4, 8]}",
    "cluster=serial",
    "executor=bare",
    "data.limit=150",
    "method.rounds=4",
    "method.epochs=1",
    "method.batch_size=16",
    "evaluation.every=1",
    "evaluation.figures=false",
    "evaluation.linear_probe=false",
    "evaluation.knn=false",
    "evaluation.kmeans_baseline=false",
    "checkpoint.every=1",
)
WHOLE = ("early_stopping=false", "trials=2", "parallel=1")


begin = partial(builders.begin, job="tune")


def rows_of(out):
    with (out / "trials.csv").open() as file:
        return list(csv.DictReader(file))


def lasting(out):
    """What does not depend on the machine's speed."""
    return [
        {name: cell for name, cell in row.items() if not name.startswith("seconds")}
        for row in rows_of(out)
    ]


def latest(out):
    """The trials that have a checkpoint."""
    return [path.parent.parent for path in out.glob("runs/*/checkpoints/latest")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "t"
    process = begin(*TINY, *WHOLE, f"run_dir={out}")
    shown, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    return out, shown


def test_the_best_final_objective_is_chosen_and_the_words_say_how(whole):
    out, shown = whole
    first, second = rows_of(out)
    assert [row["status"] for row in (first, second)] == ["completed"] * 2
    assert [row["chosen"] for row in (first, second)] == ["yes", ""]
    values = [float(row["unsupervised/selection"]) for row in (first, second)]
    assert values[0] > values[1]
    for row, value in zip((first, second), values, strict=True):
        run = out / "runs" / f"{row['trial'].replace(' ', ',')},seed=0"
        summary = json.loads((run / "summary.json").read_text())
        assert summary["metrics"]["unsupervised"]["selection"] == value
        assert summary["rounds"] == int(row["round"]) == 4
        config = (run / "config.yaml").read_text()
        assert f"learning_rate: {row['method.learning_rate']}" in config
    assert "Chosen without labels, by unsupervised/selection, the largest:\n" in shown
    assert f"  {first['trial']}\n" in shown
    assert max(map(len, shown.splitlines()[:-2])) <= 80  # below stand the paths
    with Image.open(out / "figures" / "objective.png") as figure:
        assert figure.width > 1000


def test_killed_in_the_middle_the_same_command_goes_on(whole, tmp_path):
    out = tmp_path / "t"
    process = begin(*TINY, *WHOLE, f"run_dir={out}")
    until(lambda: latest(out), 300)
    process.kill()
    process.communicate()
    (begun,) = latest(out)
    until(lambda: alive(begun) is None, 120)  # it ends with Ray, and Ray with its driver
    assert not (out / "trials.csv").exists()
    resumed = begin(*TINY, *WHOLE, f"run_dir={out}")
    _, errors = resumed.communicate(timeout=600)
    assert resumed.returncode == 0, errors
    assert "Resumed after round" in begun.with_name(f"{begun.name}.log").read_text()
    assert lasting(out) == lasting(whole[0])


def test_ctrl_c_stops_the_trials_after_a_checkpoint(tmp_path):
    out = tmp_path / "t"
    process = begin(*TINY, *WHOLE, "method.rounds=400", f"run_dir={out}")
    until(lambda: latest(out), 300)
    process.send_signal(signal.SIGINT)
    shown, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert f"go on with the same command and run_dir={out}." in " ".join(errors.split())
    assert "None is chosen: no trial has completed with unsupervised/selection." in shown
    (begun,) = latest(out)
    assert json.loads((begun / "summary.json").read_text())["status"] == "interrupted"
    assert {row["status"] for row in rows_of(out)} == {"interrupted", "not started"}


def test_trials_that_are_behind_are_stopped_and_another_objective_lets_them_go_on(tmp_path, capfd):
    out = tmp_path / "t"
    few = (*TINY, "trials=4", "parallel=2", "reduction=4", "grace=1", f"run_dir={out}")
    assert main(few) == 0
    capfd.readouterr()
    found = rows_of(out)
    behind = [row for row in found if row["status"] == "stopped"]
    assert behind
    assert {row["status"] for row in found} == {"completed", "stopped"}
    assert all(int(row["round"]) < 4 and row["unsupervised/selection"] for row in behind)
    assert set(json.loads((out / "stopped.json").read_text())["rounds"]) == {
        row["trial"] for row in behind
    }
    assert main(few) == 0  # nothing is left to do
    assert "4 runs, 4 of them completed before" in capfd.readouterr().out
    assert lasting(out) == [
        {name: cell for name, cell in row.items() if not name.startswith("seconds")}
        for row in found
    ]
    by_labels = ("objective=clustering/acc", "evaluation.unsupervised=true", "early_stopping=false")
    assert main([*few, *by_labels]) == 0
    assert {row["status"] for row in rows_of(out)} == {"completed"}
    assert "Chosen with labels, by clustering/acc, the largest:" in capfd.readouterr().out


def test_a_trial_that_fails_ends_no_other(tmp_path, capfd):
    out = tmp_path / "t"
    space = "space={method.learning_rate: [0.003, 1.0e+30]}"
    assert main([TINY[0], space, *TINY[2:], *WHOLE, f"run_dir={out}"]) == 1
    shown = capfd.readouterr().out
    assert {row["status"] for row in rows_of(out)} == {"completed", "failed"}
    assert "learning_rate=1e+30: failed" in shown


def test_a_trial_on_actors_has_the_bits_of_one_process(whole, tmp_path):
    out = tmp_path / "t"
    ray = ("cluster.num_actors=1", "cluster.start_timeout_s=600", "trials=1")
    on_actors = [text for text in (*TINY, *WHOLE) if text != "cluster=serial"]
    process = begin(*on_actors, *ray, f"run_dir={out}")
    _, errors = process.communicate(timeout=800)
    assert process.returncode == 0, errors
    (row,) = lasting(out)
    (same,) = (each for each in lasting(whole[0]) if each["trial"] == row["trial"])
    assert {**row, "chosen": ""} == {**same, "chosen": ""}


def test_an_objective_that_no_trial_has_ends_the_search_with_the_first(tmp_path, capfd):
    out = tmp_path / "t"
    keys = ("objective=clustering_test/accc", f"run_dir={out}")
    assert main([*TINY, *WHOLE, *keys]) == 2
    told = capfd.readouterr().err
    assert (
        "objective=clustering_test/accc: a trial has completed without such a score; did you mean "
        "clustering/acc?"
    ) in told
    assert len(latest(out)) == 1
