"""A run on a cluster scaled to zero: its autoscaler brings nodes, and takes them away again."""

import json
import re
import subprocess
import sys
import time

import pytest
from safetensors.torch import load_file

from coterie.commands.compose import compose
from coterie.run.federation import Federation
from tests.builders.autoscaling import Autoscaled
from tests.builders.observers import Silent
from tests.builders.runs import SMALL

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]

RUN = (
    *SMALL,
    "executor=bare",
    "evaluation.figures=false",
    "evaluation.linear_probe=false",
    "evaluation.knn=false",
    "tracking.progress=lines",
)


@pytest.fixture(params=[1, 2], ids=["launcher", "kuberay"])
def cluster(request, tmp_path):
    started = Autoscaled(tmp_path, request.param)
    try:
        started.wait_until_up()
        yield started
    finally:
        started.close()


def until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_workers_come_from_zero_and_go_back_to_it(cluster, tmp_path):
    until(lambda: cluster.workers() == 0, 10)
    command = [sys.executable, "-m", "coterie.jobs.train", *RUN, f"run_dir={tmp_path / 'run'}"]
    with (tmp_path / "run.log").open("w") as log:
        driver = subprocess.Popen(
            [*command, f"cluster.address={cluster.address}", "cluster.min_actors=2"],
            env=cluster.environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        most = 0
        while driver.poll() is None:
            most = max(most, cluster.workers())
            time.sleep(0.2)
    finally:
        driver.kill()
    told = (tmp_path / "run.log").read_text()
    assert driver.returncode == 0, told
    assert most == 2
    assert re.search(
        r"Waiting for actors \(1 CPU, 0 GPU each\): [01] of 2 are ready, .* is free; "
        "the autoscaler was asked for nodes",
        told,
    )
    until(lambda: cluster.workers() == 0, 60)
    serial = tmp_path / "serial"
    Federation(compose(*RUN, "cluster=serial", f"run_dir={serial}"), Silent()).run()
    mine, theirs = (
        load_file(folder / "model" / "model.safetensors") for folder in (tmp_path / "run", serial)
    )
    assert mine.keys() == theirs.keys()
    assert all(mine[name].equal(theirs[name]) for name in theirs)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["failures"] == []
