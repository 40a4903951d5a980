"""deploy/slurm.sh, run for real: a stub `srun` starts each node's command on this machine."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders.endless import ENDLESS, rows, summary, wait_for_rounds

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
JOB = str(100_000 + os.getpid() % 90)

SRUN = """#!/usr/bin/env bash
# As SLURM: the command once on each node, with its number; a signal reaches all of them. It takes
# over neither the CPUs of a task nor the environment, unless it is told to.
own=(env -i PATH="$PATH" SLURM_JOB_ID="$SLURM_JOB_ID")
unset SLURM_CPUS_PER_TASK
while [[ $1 == --* ]]; do
    case $1 in
    --ntasks=*) tasks=${1#*=} ;;
    --cpus-per-task=*) export SLURM_CPUS_PER_TASK=${1#*=} ;;
    --export=ALL) own=() ;;
    --ntasks-per-node=1) ;;
    *) exit 9 ;;
    esac
    shift
done
for ((node = 0; node < tasks; node++)); do
    SLURM_PROCID=$node setsid "${own[@]}" "$@" &
    nodes+=($!)
done
trap 'for node in "${nodes[@]}"; do kill -- "-$node"; done' TERM
wait
wait
"""
# Two nodes of one machine: on the loopback, with little memory.
RAY = """#!/usr/bin/env bash
own=()
[ "$1" = start ] && own=(--node-ip-address=127.0.0.1 --object-store-memory=200000000)
exec "$REAL" "$@" "${own[@]}"
"""
HOSTNAME = """#!/usr/bin/env bash
echo 127.0.0.1
"""

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture
def job(tmp_path):
    """Begins the script as sbatch does; what is left of it is ended."""
    stubs = tmp_path / "bin"
    stubs.mkdir()
    for name, text in {"srun": SRUN, "ray": RAY, "hostname": HOSTNAME}.items():
        (stubs / name).write_text(text)
        (stubs / name).chmod(0o755)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "COTERIE_"))}
    environment = {
        **clean,
        "PATH": f"{stubs}:{BIN}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT / 'platform'}:{ROOT}",
        "REAL": str(BIN / "ray"),
        "SLURM_JOB_ID": JOB,
        "SLURM_NNODES": "2",
        "SLURM_CPUS_PER_TASK": "1",
        "RAY_worker_niceness": "0",
    }
    begun = []

    def begin(*arguments):
        process = subprocess.Popen(
            ["bash", ROOT / "deploy" / "slurm.sh", *arguments],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        begun.append(process)
        return process

    yield begin
    for process in begun:
        process.kill()
        process.communicate()


def test_the_time_limits_signal_leaves_a_checkpoint_from_which_the_job_goes_on(job, tmp_path):
    run_dir = tmp_path / "run"
    reached = []
    for _ in ("submitted", "requeued"):
        before = rows(run_dir)
        process = job(*ENDLESS, f"run_dir={run_dir}")

        def going(process=process):
            return process.poll() is None or pytest.fail(process.communicate()[0])

        wait_for_rounds(run_dir, before, going)
        process.send_signal(signal.SIGTERM)
        log, _ = process.communicate(timeout=300)
        assert process.returncode == 130, log
        assert summary(run_dir)["status"] == "interrupted"
        reached.append(summary(run_dir)["rounds"])
    assert 0 < reached[0] < reached[1]
    assert f"Resumed after round {reached[0]}" in log
    assert (tmp_path / f"ray-{JOB}.log").read_text().count("Ray runtime started") == 2
    assert not list(Path("/tmp").glob(f"ray-{JOB}-*"))
