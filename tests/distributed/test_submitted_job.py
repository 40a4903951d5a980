"""`ray job submit` to a head node of our own, with token authentication, as the README says."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.timeout(420)]
REPO = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


def free_port():
    # Ray hands 10002-19999 to its workers.
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        if port > 20000:
            return port


class Head:
    """A head node with its own ports, folder and token."""

    def __init__(self, folder):
        token = folder / "token"
        token.write_text("0123456789abcdef0123456789abcdef")
        token.chmod(0o600)
        self.dashboard = free_port()
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "COTERIE_"))},
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
        }
        command = [
            BIN / "ray",
            "start",
            "--head",
            "--block",
            "--num-cpus=2",
            "--disable-usage-stats",
            "--node-ip-address=127.0.0.1",
            "--dashboard-host=127.0.0.1",
            f"--port={free_port()}",
            f"--dashboard-port={self.dashboard}",
            f"--temp-dir={folder / 'ray'}",
            f"--dashboard-agent-listen-port={free_port()}",
        ]
        self.log = (folder / "head.log").open("w")
        self.process = subprocess.Popen(
            command, env=self.environment, stdout=self.log, stderr=subprocess.STDOUT
        )

    def submit(self, *entrypoint, env=None):
        command = [
            BIN / "ray",
            "job",
            "submit",
            f"--address=http://127.0.0.1:{self.dashboard}",
            "--working-dir",
            ".",
            "--runtime-env",
            "ray_jobs/runtime_env.yaml",
            "--",
            *entrypoint,
        ]
        return subprocess.run(
            command,
            cwd=REPO,
            env=env or self.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def wait(self, seconds=90):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                probe.settimeout(1)
                if probe.connect_ex(("127.0.0.1", self.dashboard)) == 0:
                    return
            time.sleep(0.5)
        raise TimeoutError("the dashboard did not come up")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=60)
        self.log.close()


@pytest.fixture(scope="module")
def head():
    folder = Path(tempfile.mkdtemp(prefix="coterie-", dir="/tmp"))  # sockets need a short path
    node = Head(folder)
    try:
        node.wait()
        yield node
    finally:
        node.stop()
        shutil.rmtree(folder, ignore_errors=True)


SMALL = (
    "experiment=fedmcc_digits",
    "data.limit=200",
    "encoder=mlp",
    "encoder.hidden=[32]",
    "encoder.features=16",
    "method.representation_rounds=1",
    "method.representation_epochs=1",
    "method.clustering_rounds=1",
    "method.clustering_epochs=1",
    "evaluation.figures=false",
)


def test_a_submitted_job_trains_on_the_cluster(head, tmp_path):
    run_dir = tmp_path / "run"
    done = head.submit("python", "-m", "ray_jobs.train", *SMALL, f"run_dir={run_dir}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "round 2/2 clustering" in done.stdout
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["status"] == "completed"
    assert summary["rounds"] == 2
    assert 0 < summary["metrics"]["clustering"]["acc"] <= 1


def test_a_relative_run_directory_is_refused_under_a_job(head):
    done = head.submit("python", "-m", "ray_jobs.train", *SMALL, "run_dir=here")
    assert done.returncode != 0
    assert "run_dir=here: a submitted job's working directory is deleted" in done.stdout


def test_a_job_without_the_token_is_refused(head):
    without = {k: v for k, v in head.environment.items() if not k.startswith("RAY_AUTH")}
    without["RAY_AUTH_TOKEN_PATH"] = "/nonexistent"
    done = head.submit("python", "-c", "1", env=without)
    assert done.returncode != 0
    assert "token" in (done.stdout + done.stderr).lower()


def test_the_job_imports_the_engine_from_its_own_copy(head):
    code = "import platform, coterie; print(coterie.__file__); print('on', platform.system())"
    done = head.submit("python", "-c", code)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "_ray_pkg_" in done.stdout
    assert "on Linux" in done.stdout
