"""The process of a run: its environment, its end, and what it printed last."""

import os
import sys

from coterie.studies.run_process import RunProcess


def process(tmp_path, code, **environment):
    log = tmp_path / "logs" / "run.log"
    return RunProcess((sys.executable, "-c", code), log, {**os.environ, **environment})


def test_a_process_is_told_of_its_gpus(tmp_path):
    tells = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], 'HOME' in os.environ)"
    begun = process(tmp_path, tells, CUDA_VISIBLE_DEVICES="1")
    assert begun.wait() == 0
    assert begun.log.read_text() == "1 True\n"


def test_runs_of_a_study_have_ids_of_their_own(tmp_path):
    names = ("WANDB_RUN_ID", "WANDB_NAME", "LANG")
    tells = f"import os; print([name for name in {names} if name in os.environ])"
    begun = process(tmp_path, tells, WANDB_RUN_ID="one", WANDB_NAME="mine", LANG="C")
    assert begun.wait() == 0
    assert begun.log.read_text() == "['LANG']\n"


def test_why_a_process_failed_is_its_last_line_or_its_signal(tmp_path):
    begun = process(tmp_path, "print('round 1/2'); print('No room.'); raise SystemExit(2)")
    assert begun.reason(begun.wait()) == f"No room ({begun.log})."
    assert begun.progress == "round 1/2"
    killed = process(tmp_path, "import os; os.kill(os.getpid(), 9)")
    assert killed.reason(killed.wait()) == f"ended by SIGKILL ({killed.log})."


def test_a_released_process_sees_the_end_of_its_input(tmp_path):
    begun = process(tmp_path, "import sys; sys.stdin.read(); print('over')")
    assert not begun.ended
    begun.release()
    assert begun.wait() == 0
    assert begun.log.read_text() == "over\n"
