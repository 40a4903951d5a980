"""The driver is killed at any moment, again and again; `resume=true` gives the undisturbed bits."""

import json
import multiprocessing
import os
import random
import signal
import time

import pytest
from safetensors.torch import load_file

from coterie.commands.compose import compose
from coterie.run.federation import Federation
from tests.builders.every_method import CHOICES, small
from tests.builders.observers import Silent
from tests.builders.runs import SMALL

EVERY = (
    "cluster=serial",
    "executor=bare",
    "checkpoint.every=1",
    "evaluation.every=2",
    "evaluation.figures=false",
    "evaluation.linear_probe=false",
    "evaluation.knn=false",
)
RUN = (*SMALL, *EVERY, "method.representation_rounds=3", "method.clustering_rounds=3")
# Forks of a process that has imported PyTorch once and run nothing: after some tests PyTorch has
# threads for gradients, which do not survive a fork of their own process.
FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload([__name__])


def train(run_dir, keys):
    Federation(compose(*keys, f"run_dir={run_dir}", "resume=true"), Silent()).run()


def in_a_process(run_dir, seconds=None, keys=RUN):
    """Run, killed after so many seconds; whether it got to its end."""
    process = FORK.Process(target=train, args=(run_dir, keys))
    process.start()
    process.join(seconds)
    if process.is_alive():
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode == 0


def gave(run_dir):
    """Everything a run gives by name: all but times, and the state of this tree."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").open()]
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary.pop("seconds")["total"] > 0
    assert summary.pop("commit")  # of the tree, which may change while this runs
    model = load_file(run_dir / "model" / "model.safetensors")
    bits = {name: value.numpy().tobytes() for name, value in model.items()}
    timeless = [{k: v for k, v in row.items() if "seconds" not in k} for row in rows]
    assignments = run_dir / "assignments.parquet"
    clusters = assignments.read_bytes() if assignments.exists() else None  # FedAvg has none
    return {"model": bits, "clusters": clusters, "metrics": timeless, "summary": summary}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    started = time.perf_counter()
    assert in_a_process(run_dir)
    return gave(run_dir), time.perf_counter() - started


def kill_until_done(run_dir, seconds, generator, kills, keys=RUN):
    """Kill it at random moments; how many rounds were done at each kill."""
    done = []
    while len(done) < kills and not in_a_process(run_dir, generator.uniform(0.1, seconds), keys):
        latest = run_dir / "checkpoints" / "latest"
        done.append(int(latest.read_text()[6:12]) if latest.exists() else 0)
    assert in_a_process(run_dir, keys=keys)
    return done


@pytest.mark.ci
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_a_few_times(undisturbed, tmp_path, seed):
    expected, seconds = undisturbed
    kill_until_done(tmp_path / "run", seconds / 2, random.Random(seed), kills=3)
    assert gave(tmp_path / "run") == expected


WRITTEN = [
    "summary.json",
    "checkpoints/latest",
    *(pytest.param(n, marks=pytest.mark.slow) for n in ("config.yaml", "model/model.json")),
]


def killed_at_the_disk(run_dir, name):
    """As `train`, but killed while half of this file of the run directory waits for the disk."""
    fsync, path = os.fsync, run_dir / name
    half = f".coterie-{os.getpid()}-*.tmp/{path.name}"

    def die(descriptor):
        if [*path.parent.glob(half)]:
            os.kill(os.getpid(), signal.SIGKILL)
        fsync(descriptor)

    os.fsync = die
    train(run_dir, RUN)


@pytest.mark.parametrize("name", WRITTEN)
def test_killed_while_a_file_is_written(undisturbed, tmp_path, name):
    process = FORK.Process(target=killed_at_the_disk, args=(tmp_path / "run", name))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert list((tmp_path / "run").rglob("*.tmp"))
    assert in_a_process(tmp_path / "run")
    assert gave(tmp_path / "run") == undisturbed[0]
    assert not list((tmp_path / "run").rglob("*.tmp"))


@pytest.mark.slow
@pytest.mark.parametrize("choice", CHOICES)
def test_every_method_killed_a_few_times(tmp_path, choice):
    keys = (*small(choice), *EVERY)
    started = time.perf_counter()
    assert in_a_process(tmp_path / "whole", keys=keys)
    seconds = time.perf_counter() - started
    kill_until_done(tmp_path / "run", seconds, random.Random(choice), kills=3, keys=keys)
    assert gave(tmp_path / "run") == gave(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_a_hundred_times(undisturbed, tmp_path):
    expected, seconds = undisturbed
    generator, hits, number = random.Random(2), [], 0
    while len(hits) < 100:
        number += 1
        hits += kill_until_done(tmp_path / str(number), seconds, generator, kills=10)
        assert gave(tmp_path / str(number)) == expected
    assert set(hits) >= {0, 1, 2, 3, 4, 5}
