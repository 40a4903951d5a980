"""A small comparison, and how to watch one in a process of its own."""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TINY = (
    "experiments=[fedmcc_digits,fedavg_digits]",
    "seeds=[0,1]",
    "cluster=serial",
    "executor=bare",
    "data.limit=120",
    "encoder=mlp",
    "encoder.hidden=[16]",
    "encoder.features=8",
    "evaluation.every=1",
    "evaluation.figures=false",
    "evaluation.linear_probe=false",
    "evaluation.kmeans_baseline=false",
    "checkpoint.every=1",
    "fedmcc_digits:method.cluster_heads=1",
    "fedmcc_digits:method.representation_rounds=2",
    "fedmcc_digits:method.representation_epochs=1",
    "fedmcc_digits:method.clustering_rounds=2",
    "fedmcc_digits:method.clustering_epochs=1",
    "fedavg_digits:method.rounds=3",
)
SLOW = ("fedmcc_digits:method.representation_rounds=400",)


def begin(*arguments, job="compare"):
    """A comparison, or another job, in a process of its own, as from a terminal."""
    return subprocess.Popen(
        [sys.executable, "-m", f"coterie.jobs.{job}", *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"platform{os.pathsep}."},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def until(condition, seconds=90):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def rounds_done(out, label="fedmcc_digits", seed=0):
    latest = run_of(out, label, seed) / "checkpoints" / "latest"
    return int(latest.read_text()[6:12]) if latest.exists() else 0


def run_of(out, label, seed):
    return out / "runs" / f"{label},seed={seed}"


def alive(run):
    """The process that writes in a run's folder, if it still lives."""
    pid = int((run / ".lock").read_text())
    return pid if Path(f"/proc/{pid}").exists() else None
