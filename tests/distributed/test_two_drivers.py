"""Two drivers on one cluster at the same time: each has the bits of a run alone."""

import json
import os
import subprocess
import sys

import pytest
import ray
from ray.cluster_utils import Cluster
from safetensors.torch import load_file

from coterie.commands.compose import compose
from coterie.run.federation import Federation
from tests.builders.comparisons import ROOT, until
from tests.builders.observers import Silent
from tests.builders.runs import COMMAND

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.usefixtures("no_cluster"),
]

LITTLE = (*(key for key in COMMAND if key != "cluster=serial"), "partition.clients=2")
ON_ACTORS = ("cluster.num_actors=2", "cluster.start_timeout_s=900")


@pytest.fixture
def cluster():
    """One node with room for the actors of two runs, and for no more."""
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 4, "include_dashboard": False}
    )
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def begin(cluster, folder, seed):
    """A run in a process of its own, as another user's."""
    where = (f"cluster.address={cluster.address}", f"run_dir={folder}", f"seed={seed}")
    return subprocess.Popen(
        [sys.executable, "-m", "coterie.jobs.train", *LITTLE, *ON_ACTORS, *where],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'platform'}{os.pathsep}{ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_two_runs_at_once_have_the_bits_of_one_alone(cluster, tmp_path):
    seeds = (0, 1)
    runs = [begin(cluster, tmp_path / f"both{seed}", seed) for seed in seeds]
    try:
        # Each takes half of the CPUs, from its start to its end.
        until(lambda: ray.available_resources().get("CPU", 0.0) < 1, 900)
        assert all(run.poll() is None for run in runs)
        for run in runs:
            shown, _ = run.communicate(timeout=900)
            assert run.returncode == 0, shown
    finally:
        for run in runs:
            run.kill()
    until(lambda: ray.available_resources().get("CPU", 0.0) == 4, 60)  # both gave all back
    for seed in seeds:
        alone, both = tmp_path / f"alone{seed}", tmp_path / f"both{seed}"
        Federation(
            compose(*LITTLE, "cluster=serial", f"run_dir={alone}", f"seed={seed}"), Silent()
        ).run()
        mine, theirs = (load_file(path / "model" / "model.safetensors") for path in (both, alone))
        assert mine.keys() == theirs.keys()
        assert all(mine[name].equal(theirs[name]) for name in theirs)
        summaries = [json.loads((path / "summary.json").read_text()) for path in (both, alone)]
        assert summaries[0]["failures"] == []
        assert summaries[0]["metrics"] == summaries[1]["metrics"]
        assert summaries[0]["bytes"] == summaries[1]["bytes"]
