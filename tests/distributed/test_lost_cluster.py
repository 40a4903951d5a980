"""Ray's own processes die, or do not start: one sentence, a checkpoint."""

import json
import os
import signal
import subprocess
import sys

import pytest
import torch

from coterie.commands.compose import compose
from coterie.errors import RunError
from coterie.run.federation import Federation
from tests.builders.observers import Silent
from tests.builders.runs import SMALL

pytestmark = pytest.mark.ray

RUN = (
    *SMALL,
    "executor=bare",
    "cluster.num_actors=2",
    "checkpoint.every=0",
    "evaluation.every=0",
    "evaluation.figures=false",
    "evaluation.linear_probe=false",
    "evaluation.knn=false",
)


class Kills(Silent):
    """Kills a process when a phase begins."""

    def __init__(self, phase, pid):
        super().__init__()
        self.phase, self.pid, self.begun = phase, pid, 0

    def phase_started(self, phase, cohort_size, total_rounds):
        if self.begun == self.phase:
            os.kill(self.pid(), signal.SIGKILL)
        self.begun += 1


LONG = (*RUN, "method.representation_epochs=20", "method.clustering_epochs=20")
KILLED = """
import sys
from tests.distributed.test_lost_cluster import LONG, Kills
from tests.builders.ray_processes import ray_process
from coterie.commands.compose import compose
from coterie.commands.program import run_command
from coterie.run.federation import Federation

def command(arguments):
    victim, phase, run_dir = arguments
    config = compose(*LONG, f"run_dir={run_dir}")
    return Federation(config, Kills(int(phase), lambda: ray_process(victim))).run().exit_code

sys.exit(run_command(command, sys.argv[1:], str))
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that nothing disturbs."""
    return finished(tmp_path_factory.mktemp("whole") / "run")


def finished(run_dir):
    """The model's bits of a run that goes on in this process; where it runs changes none."""
    keys = (*LONG, "cluster=serial", f"run_dir={run_dir}", "resume=true")
    return Federation(compose(*keys), Silent()).run().model.state_dict()


def check_killed(victim, phase, run_dir, whole):
    """Kill one of Ray's processes in a run, in a process of its own, and go on with the run."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, victim, str(phase), str(run_dir)],
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode not in (0, 3), done.stderr
    if victim == "gcs_server":  # which Ray itself would notice after a minute
        summary = json.loads((run_dir / "summary.json").read_text())
        assert summary["error"].startswith("Ray's control process (gcs_server) at ")
        assert (done.returncode, "Traceback" in done.stderr) == (RunError.exit_code, False)
        rounds = summary["rounds"]  # one may end before the loss is noticed
        assert rounds >= phase
        assert (run_dir / "checkpoints" / "latest").read_text() == f"round-{rounds:06d}\n"
    ours = finished(run_dir)
    assert ours.keys() == whole.keys()
    assert all(torch.equal(ours[name], whole[name]) for name in whole)


@pytest.mark.slow
def test_a_lost_control_process_is_one_sentence_and_a_checkpoint(tmp_path, whole):
    check_killed("gcs_server", 1, tmp_path / "run", whole)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("victim", "phase"), [("gcs_server", 2), ("gcs_server", 3), ("raylet", 0), ("raylet", 3)]
)
def test_rays_own_processes_killed_in_any_phase(tmp_path, whole, victim, phase):
    check_killed(victim, phase, tmp_path / "run", whole)
