"""`coterie compare` on real runs: whole, resumed, failing, interrupted."""

import contextlib
import csv
import io
import json
import shutil
import signal
import statistics
import threading

import pytest
from PIL import Image

from coterie.jobs.compare import main
from coterie.tracking.claim import claimed
from tests.builders.comparisons import SLOW, TINY, alive, begin, rounds_done, run_of, until
from tests.builders.wandb_records import complete_wandb_records


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "c"
    assert main([*TINY, f"out={out}"]) == 0
    return out


def test_the_tables_numbers_are_those_of_summary_json(compared):
    rows = {row["experiment"]: row for row in csv.DictReader((compared / "table.csv").open())}
    runs = list(csv.DictReader((compared / "runs.csv").open()))
    for label, group in (("fedmcc_digits", "clustering"), ("fedavg_digits", "test")):
        summaries = [
            json.loads((run_of(compared, label, seed) / "summary.json").read_text())
            for seed in (0, 1)
        ]
        accs = [summary["metrics"][group]["acc"] for summary in summaries]
        assert accs[0] != accs[1]
        assert float(rows[label][f"{group}/acc mean"]) == statistics.fmean(accs)
        assert float(rows[label][f"{group}/acc std"]) == statistics.stdev(accs)
        assert (rows[label]["completed"], rows[label]["runs"]) == ("2", "2")
        own = [run for run in runs if run["experiment"] == label]
        assert [float(run[f"{group}/acc"]) for run in own] == accs
        assert [int(run["bytes/up"]) for run in own] == [s["bytes"]["up"] for s in summaries]
        assert [summary["seed"] for summary in summaries] == [0, 1]
        text = f"{statistics.fmean(accs):.3f} ± {statistics.stdev(accs):.3f}"
        (line,) = [line for line in (compared / "table.md").open() if line.startswith(f"| {label}")]
        assert text in line
    assert rows["fedavg_digits"]["clustering/acc mean"] == ""


def test_each_run_is_one_of_ray_jobs_train(compared):
    run = run_of(compared, "fedavg_digits", 1)
    assert {"config.yaml", "metrics.jsonl", "summary.json", "checkpoints", "model"} <= {
        path.name for path in run.iterdir()
    }
    assert "round 3/3" in run.with_name(f"{run.name}.log").read_text()
    plan = (compared / "comparison.yaml").read_text()
    assert "experiment=fedavg_digits" in plan
    assert "method.rounds=3" in plan


def test_the_figures_are_drawn_over_rounds_and_bytes(compared):
    names = {"bytes.png", "differences.png", "round.png"}
    assert {path.name for path in (compared / "figures").iterdir()} == names
    for path in (compared / "figures").iterdir():
        with Image.open(path) as figure:
            assert figure.format == "PNG"
            assert figure.width > 1000


def test_wandb_has_the_table(compared):
    wandb = ("tracking=wandb", "tracking.wandb.mode=offline")
    assert main([*TINY, *wandb, f"out={compared}", "resume=true"]) == 0
    (folder,) = (compared / "wandb").glob("offline-run-*")
    (path,) = folder.glob("*.wandb")
    records = complete_wandb_records(path)
    keys = [
        item.nested_key[0] if item.nested_key else item.key
        for r in records
        for item in r.history.item
    ]
    (run,) = [r.run for r in records if r.HasField("run")]
    assert (run.run_group, run.job_type) == (f"comparison-{compared.name}", "compare")
    assert "comparison" in keys
    assert "figures" in keys
    (table,) = folder.glob("files/media/table/comparison*.table.json")
    content = json.loads(table.read_text())
    assert content["columns"][:3] == ["experiment", "completed", "runs"]
    assert [row[:3] for row in content["data"]] == [
        ["fedmcc_digits", 2, 2],
        ["fedavg_digits", 2, 2],
    ]


def test_finished_runs_are_not_repeated_and_seeds_can_be_added(compared, capsys, tmp_path):
    before = {p: p.stat().st_mtime_ns for p in compared.glob("runs/*/summary.json")}
    table = (compared / "table.md").read_text()
    assert main([*TINY, f"out={compared}", "resume=true"]) == 0
    assert {p: p.stat().st_mtime_ns for p in before} == before
    assert (compared / "table.md").read_text() == table
    assert "4 runs, 4 of them completed before" in capsys.readouterr().out
    other = [key.replace("method.rounds=3", "method.rounds=2") for key in TINY]
    assert main([*other, f"out={compared}", "resume=true"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("fedavg_digits seed 0: resume=true: the checkpoint's run had ")
    assert main([*TINY, f"out={compared}"]) == 2
    assert f"out={compared}: the folder is not empty" in capsys.readouterr().err


@pytest.mark.slow
def test_runs_can_be_made_longer(compared, capsys, tmp_path):
    out = tmp_path / "c"
    shutil.copytree(compared, out, ignore=shutil.ignore_patterns("wandb"))
    assert main([*TINY, "fedavg_digits:method.rounds=4", f"out={out}", "resume=true"]) == 0
    assert "4 runs, 2 of them completed before" in capsys.readouterr().out
    for seed in (0, 1):
        folder = run_of(out, "fedavg_digits", seed)
        assert json.loads((folder / "summary.json").read_text())["rounds"] == 4
        assert "Longer than before: method.rounds rises from 3 to 4." in log_of(folder)


def log_of(folder):
    return folder.with_name(f"{folder.name}.log").read_text()


@pytest.mark.slow
def test_killed_in_the_middle_and_resumed_it_gives_the_same_table(compared, tmp_path):
    out = tmp_path / "c"
    one = [key for key in TINY if not key.startswith(("experiments", "fedavg_digits:"))]
    one += ["experiments=[fedmcc_digits]", f"out={out}"]
    process = begin(*one, "parallel=1")
    until(lambda: rounds_done(out) >= 1)
    process.kill()
    process.communicate()
    until(lambda: alive(run_of(out, "fedmcc_digits", 0)) is None)  # it ends with its parent
    assert not (out / "table.md").exists()
    resumed = begin(*one, "resume=true")
    shown, errors = resumed.communicate(timeout=240)
    assert resumed.returncode == 0, errors
    (row,) = csv.DictReader((out / "table.csv").open())
    whole = next(csv.DictReader((compared / "table.csv").open()))
    assert row == {name: whole[name] for name in row}
    assert "clustering/acc mean" in row
    assert max(map(len, shown.splitlines()[:-4])) <= 80  # below stand the paths


@pytest.mark.slow
def test_ctrl_c_stops_the_runs_after_a_checkpoint(tmp_path):
    out = tmp_path / "c"
    process = begin(*TINY, *SLOW, f"out={out}", "parallel=1")
    until(lambda: rounds_done(out) >= 1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=90)
    assert process.returncode == 130
    assert errors.startswith("SIGINT came; the runs have stopped; go on with the same command and ")
    assert alive(run_of(out, "fedmcc_digits", 0)) is None
    summary = json.loads((run_of(out, "fedmcc_digits", 0) / "summary.json").read_text())
    assert summary["status"] == "interrupted"
    assert rounds_done(out) >= summary["rounds"] >= 1
    table = (out / "table.md").read_text()
    assert "- fedmcc_digits, seed 0: interrupted." in table
    assert "- fedavg_digits, seed 1: not started." in table


@pytest.mark.slow
def test_a_run_that_fails_is_told_of_and_the_others_go_on(tmp_path, capsys):
    out = tmp_path / "c"
    keys = [key for key in TINY if not key.startswith(("seeds", "experiments", "fed"))]
    arguments = [
        *keys,
        "experiments={bad: fedavg_digits, good: fedavg_digits}",
        "seeds=[0]",
        f"out={out}",
        "method.rounds=3",
        "bad:method.learning_rate=1e30",
    ]
    assert main(arguments) == 1
    shown = capsys.readouterr().out
    rows = {row["experiment"]: row for row in csv.DictReader((out / "table.csv").open())}
    assert {name: row["completed"] for name, row in rows.items()} == {"bad": "0", "good": "1"}
    assert rows["bad"]["test/acc mean"] == ""
    assert float(rows["good"]["test/acc mean"]) > 0
    assert "\n- bad, seed 0: failed: " in (out / "table.md").read_text()
    assert "bad, seed 0: failed: " in shown


@pytest.mark.slow
def test_a_run_to_be_made_longer_is_not_shown_as_completed(compared, tmp_path):
    """Interrupted before it has begun, it has neither the old length nor the new one."""
    out = tmp_path / "c"
    shutil.copytree(compared, out, ignore=shutil.ignore_patterns("wandb"))
    longer = "fedavg_digits:method.rounds=400"
    process = begin(*TINY, longer, f"out={out}", "resume=true", "parallel=1")
    until(lambda: "started fedavg_digits seed 0" in process.stdout.readline())
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=90)
    assert process.returncode == 130
    table = (out / "table.md").read_text()
    assert "- fedavg_digits, seed 0: interrupted." in table
    assert "- fedavg_digits, seed 1: interrupted." in table


@pytest.mark.parametrize("part", ["runs", "figures"])
def test_a_strangers_comparison_with_a_link_is_not_gone_on_with(compared, capsys, tmp_path, part):
    out, mine = tmp_path / "c", tmp_path / "mine"
    shutil.copytree(compared, out, ignore=shutil.ignore_patterns("wandb"))
    shutil.move(out / part, mine) if (out / part).exists() else mine.mkdir()
    (out / part).symlink_to(mine)
    assert main([*TINY, f"out={out}", "resume=true"]) == 2
    assert "is a link" in capsys.readouterr().err


def test_a_run_whose_former_process_still_writes_is_waited_for(compared, monkeypatch, tmp_path):
    """As that of a comparison that was killed, which is evaluating its final model."""
    out = tmp_path / "c"
    shutil.copytree(compared, out, ignore=shutil.ignore_patterns("wandb"))
    folder = run_of(out, "fedavg_digits", 1)
    summary = (folder / "summary.json").read_text()
    (folder / "summary.json").unlink()

    class Shown(io.StringIO):
        def write(self, text):
            if "seed 1: waiting for another process, which still writes in its" in text:
                threading.Timer(0.5, end).start()
            return super().write(text)

    def end():
        (folder / "summary.json").write_text(summary)
        held.close()

    held, shown = contextlib.ExitStack(), Shown()
    held.enter_context(claimed(folder))
    monkeypatch.setattr("sys.stdout", shown)
    assert main([*TINY, f"out=file://{out}", "resume=true"]) == 0
    assert "fedavg_digits seed 1: completed" in shown.getvalue()
    assert "started" not in shown.getvalue()
