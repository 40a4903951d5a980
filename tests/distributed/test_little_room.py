"""Little room for Ray: a small object store, a full temporary folder, a limit on addresses."""

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import ray
import torch
from safetensors.torch import load_file

from coterie.commands.compose import compose
from coterie.run.federation import Federation
from tests.builders.comparisons import ROOT
from tests.builders.observers import Silent

pytestmark = pytest.mark.ray

LARGE = (
    *("experiment=fedavg_digits", "data.limit=200", "executor=bare", "method.rounds=2"),
    *("method.epochs=1", "encoder=mlp", "encoder.hidden=[4000]", "encoder.features=2400"),
    *("evaluation.figures=false", "evaluation.linear_probe=false", "evaluation.knn=false"),
)
"""Five clients of a model of 40 MB, whose sums take 160."""
STORE = 80 * 2**20


def model(run_dir, *keys):
    result = Federation(compose(*LARGE, *keys, f"run_dir={run_dir}"), Silent()).run()
    assert result.exit_code == 0
    return load_file(run_dir / "model" / "model.safetensors")


def command(*keys, limit=None, **environment):
    """Train on two actors, in a process that may map so many bytes."""
    return subprocess.run(
        [sys.executable, "-m", "coterie.jobs.train", *keys, "cluster.num_actors=2"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"platform{os.pathsep}.", **environment},
        preexec_fn=limit and (lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit))),
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )


@pytest.fixture
def disk(request):
    """A folder on a disk of so many MiB, with a path short enough for sockets."""
    if os.geteuid():
        pytest.skip("only root mounts a disk")
    folder = Path(tempfile.mkdtemp(prefix="d", dir="/tmp"))
    size = f"size={request.param}m,mode=700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)
    folder.rmdir()


@pytest.mark.parametrize("disk", [1], indirect=True)
def test_a_full_temporary_folder_is_told_before_ray_fails_in_it(disk, tmp_path):
    done = command(*LARGE, f"run_dir={tmp_path / 'run'}", TMPDIR=str(disk), RAY_TMPDIR="")
    assert done.returncode == 1
    assert done.stderr == (
        f"Ray cannot start: {disk} has 1 MiB free, and Ray needs 32 or more for its logs; make "
        "room there, or set RAY_TMPDIR to another folder.\n"
    )


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("disk", [150], indirect=True)
def test_a_temporary_folder_that_fills_up_is_named(disk, tmp_path):
    """What the object store does not hold goes there."""
    small = {"RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": str(STORE), "RAY_TMPDIR": str(disk)}
    done = command(*LARGE, f"run_dir={tmp_path / 'run'}", **small)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith(
        f"failed: Ray's object store is full, and so is the disk with {disk}/"
    )
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_sums_larger_than_the_object_store_go_by_the_disk(no_cluster, tmp_path):
    plain = model(tmp_path / "serial", "cluster=serial")
    assert sum(value.nbytes for value in plain.values()) > STORE / 3
    options = {"include_dashboard": False, "log_to_driver": False}
    ray.init(address="local", num_cpus=2, object_store_memory=STORE, **options)
    try:
        small = model(tmp_path / "ray", "cluster.num_actors=2")
    finally:
        ray.shutdown()
    assert all(torch.equal(small[name], value) for name, value in plain.items())


@pytest.mark.slow
def test_a_limit_under_which_ray_aborts_is_told(tmp_path):
    done = command(*LARGE, f"run_dir={tmp_path / 'run'}", limit=63 * 2**30)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == (
        "failed: cluster.backend=ray: this process may map 63 GiB (ulimit -v), and Ray maps up to "
        "64; lift the limit, or take cluster=serial."
    )


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_under_the_limit_that_is_named_a_run_goes_on(tmp_path):
    done = command(*LARGE, f"run_dir={tmp_path / 'run'}", limit=64 * 2**30)
    assert (done.returncode, done.stderr) == (0, "")
