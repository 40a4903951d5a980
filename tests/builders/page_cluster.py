"""A Ray cluster of two nodes, started by the lines of docs/cluster.md in a fresh home."""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

REPO = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
PAGE = (REPO / "docs" / "cluster.md").read_text(encoding="utf-8")

# Ports and folders of its own, beside any other Ray of this machine.
RAY = """
ray() {
    if [ "$1" = start ]; then command ray "$@" $OF_ITS_OWN; else command ray "$@"; fi
}
"""


def blocks(heading):
    """The shell lines under a heading of the page."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    return re.findall(r"^```bash\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)


SETTINGS = blocks("Submit")[0].splitlines()[0]
"""The line that every shell needs in which jobs are submitted, followed or stopped."""


def free_ports(count):
    """Ports that nothing listens on; Ray hands 10002-19999 to its workers."""
    held = []
    while len(held) < count:
        probe = socket.socket()
        probe.bind(("127.0.0.1", 0))
        if probe.getsockname()[1] > 20000:
            held.append(probe)
    ports = [probe.getsockname()[1] for probe in held]
    for probe in held:
        probe.close()
    return ports


class PageCluster:
    """The cluster, and a shell in which the page's lines mean it."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="coterie-", dir="/tmp"))  # for short sockets
        self.home = self.folder / "home"
        self.home.mkdir()
        self.head = self.folder / "1"
        self.gcs, self.dashboard, self.metrics, *self._others = free_ports(6)
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "COTERIE_"))},
            "HOME": str(self.home),
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
        }

    def start(self):
        head, other = blocks("Start")
        agent, agent_of_other, metrics_of_other = self._others
        self._start(
            head,
            self.head,
            f"--port={self.gcs} --dashboard-port={self.dashboard} "
            f"--dashboard-agent-listen-port={agent} --metrics-export-port={self.metrics}",
        )
        self._start(
            other,
            self.folder / "2",
            f"--dashboard-agent-listen-port={agent_of_other} "
            f"--metrics-export-port={metrics_of_other}",
        )
        self.shell(
            "\n".join((blocks("Submit")[0].splitlines()[0], "ray job list"))
        ).check_returncode()

    def _start(self, lines, place, own):
        own += (
            f" --num-cpus=1 --node-ip-address=127.0.0.1 --object-store-memory=200000000 "
            f"--temp-dir={place}"
        )
        done = self.shell(lines, OF_ITS_OWN=own)
        assert done.returncode == 0, done.stdout + done.stderr

    def shell(self, lines, **environment):
        """Run lines of the page, from the checkout, as a person of this home."""
        own = lines.replace("HEAD:6379", f"127.0.0.1:{self.gcs}").replace(
            "8265", str(self.dashboard)
        )
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", RAY + own],
            cwd=REPO,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )

    def submit(self, *entrypoint, options=""):
        """Submit a job as the page does, but with another command."""
        lines, command = blocks("Submit")[0].split("-- \\\n")
        assert command.strip().startswith("python -m ray_jobs.train ")
        return self.shell(f"{lines} {options} -- {shlex.join(entrypoint)}")

    def end(self):
        """End all processes of this home, by their ids."""
        mine = [process for process in psutil.process_iter() if self._is_mine(process)]
        for process in mine:
            process.kill()
        psutil.wait_procs(mine, timeout=30)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _is_mine(self, process):
        try:
            return process.environ().get("HOME") == str(self.home)
        except (psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess):
            return False
