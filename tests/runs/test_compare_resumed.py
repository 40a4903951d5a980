"""A comparison that goes on where runs are to be longer, or are still written."""

import contextlib
import shutil
import signal
import threading

import pytest

from coterie.tracking.claim import claimed
from ray_jobs.compare import main
from tests.comparisons import TINY, begin, run_of, until

ONE = [key for key in TINY if not key.startswith(("experiments", "fedmcc"))]
ONE += ["experiments=[fedavg_digits]"]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    out = tmp_path_factory.mktemp("compared") / "c"
    assert main([*ONE, f"out={out}"]) == 0
    return out


def test_a_run_to_be_made_longer_is_not_shown_as_completed(compared, tmp_path):
    """Interrupted before it has begun, it has neither the old length nor the new one."""
    out = tmp_path / "c"
    shutil.copytree(compared, out)
    longer = "fedavg_digits:method.rounds=400"
    process = begin(*ONE, longer, f"out={out}", "resume=true", "parallel=1")
    until(lambda: "started fedavg_digits seed 0" in process.stdout.readline())
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=90)
    assert process.returncode == 130
    table = (out / "table.md").read_text()
    assert "- fedavg_digits, seed 0: interrupted." in table
    assert "- fedavg_digits, seed 1: interrupted." in table


def test_a_run_whose_former_process_still_writes_is_waited_for(compared, capsys, tmp_path):
    """As that of a comparison that was killed, which is evaluating its final model."""
    out = tmp_path / "c"
    shutil.copytree(compared, out)
    folder = run_of(out, "fedavg_digits", 1)
    summary = (folder / "summary.json").read_text()
    (folder / "summary.json").unlink()

    def end():
        (folder / "summary.json").write_text(summary)
        held.close()

    held = contextlib.ExitStack()
    held.enter_context(claimed(folder))
    timer = threading.Timer(2.0, end)
    timer.start()
    assert main([*ONE, f"out=file://{out}", "resume=true"]) == 0
    timer.join()
    shown = capsys.readouterr().out
    assert "fedavg_digits seed 1: waiting for the process that still writes in it" in shown
    assert "fedavg_digits seed 1: completed" in shown
    assert "started" not in shown
