"""`make cluster`: three nodes on this machine, a job, and nothing left of them."""

import os
import re
import signal
import subprocess
from contextlib import suppress

import psutil
import pytest

from tests.builders.endless import ENDLESS, summary, wait_for_rounds
from tests.builders.page_cluster import BIN, REPO

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(1800)]
SCRIPT = "deploy/local_cluster.sh"


@pytest.fixture
def started(tmp_path):
    """Starts the script; what a failing test leaves of it is ended by id."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "COTERIE_"))}
    here = {"PATH": f"{BIN}:{os.environ['PATH']}", "COTERIE_RUNS": str(tmp_path / "runs")}
    begun = []

    def start(*arguments):
        process = subprocess.Popen(
            # Ctrl-C means something to it, even where these tests run in the background.
            ["env", "--default-signal=INT", "bash", REPO / SCRIPT, *arguments],
            env={**clean, **here, "RAY_worker_niceness": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        begun.append(process)
        return process

    yield start
    for process in begun:
        process.terminate()
        process.communicate(timeout=300)
    for process in left(tmp_path):
        process.kill()


def left(tmp_path):
    """The processes that have this test's runs in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("COTERIE_RUNS") == str(tmp_path / "runs"):
                found.append(process)
        except (psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found


def listeners(processes):
    """The addresses that processes listen on; at least the head's are there."""
    found = set()
    for process in processes:
        with suppress(psutil.Error):
            connections = process.net_connections("inet")
            found |= {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN}
    assert found
    return found


def test_the_makefile_runs_the_script_in_its_environment():
    done = subprocess.run(
        ["make", "-n", "-o", "install", "cluster"],
        cwd=REPO,
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.fullmatch(rf'PATH=".*\.venv/bin:\$PATH" {SCRIPT}\n', done.stdout)


def test_the_demo_runs_as_a_job_and_nothing_is_left(started, tmp_path):
    log, _ = started().communicate(timeout=1200)
    assert "round 15/15 clustering" in log
    assert re.search(r"Job 'coterie-\d+' succeeded", log)
    (run_dir,) = (tmp_path / "runs" / "concord_digits").iterdir()
    assert summary(run_dir)["status"] == "completed"
    assert not left(tmp_path)


def test_ctrl_c_stops_the_job_with_a_checkpoint_and_ends_the_cluster(started, tmp_path):
    run_dir = tmp_path / "run"
    process = started(*ENDLESS, f"run_dir={run_dir}")
    wait_for_rounds(
        run_dir, 0, going=lambda: process.poll() is None or pytest.fail(process.communicate()[0])
    )
    assert listeners(left(tmp_path)) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    process.send_signal(signal.SIGINT)
    log, _ = process.communicate(timeout=300)
    assert process.returncode == 130, log
    found = summary(run_dir)
    assert found["status"] == "interrupted"
    assert (run_dir / "checkpoints" / f"round-{found['rounds']:06}").is_dir()
    assert not left(tmp_path)
