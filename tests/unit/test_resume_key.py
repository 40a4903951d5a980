"""`resume=true` on a finished run, without a run, and without a folder."""

import json

from coterie import Federation
from ray_jobs.compose import compose
from tests.distributed.runs import Silent
from tests.finished_runs import TINY


def train(folder, *overrides):
    """Run it; what the view was told."""
    view = Silent()
    Federation(compose(*TINY, f"run_dir={folder}", *overrides), view).run()
    return view.notes


def test_a_finished_run_without_checkpoints_between_has_one_at_its_end(tmp_path):
    run_dir = tmp_path / "run"
    train(run_dir, "checkpoint.every=0")
    assert [path.name for path in (run_dir / "checkpoints").glob("round-*")] == ["round-000004"]
    rows = (run_dir / "metrics.jsonl").read_text()
    notes = train(run_dir, "checkpoint.every=0", "resume=true")
    assert "Resumed after round 4." in notes
    assert (run_dir / "metrics.jsonl").read_text() == rows
    assert json.loads((run_dir / "summary.json").read_text())["rounds"] == 4
