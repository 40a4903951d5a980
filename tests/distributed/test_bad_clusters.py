"""Clusters that cannot give what is asked for: one sentence, the right exit code, nothing left."""

import re
import time

import pytest
import ray
from ray.cluster_utils import Cluster

from coterie.config.schema import ClusterConfig
from coterie.distributed.cluster import free_actors
from coterie.errors import ConfigError
from coterie.jobs.train import main
from tests.builders.ray_processes import join
from tests.builders.runs import COMMAND

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("no_cluster")]

ON_RAY = (*COMMAND, "cluster=local")


@pytest.fixture(scope="module")
def nodes():
    """Two nodes of 2 CPUs; the second has a GPU by its own account."""
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 2, "num_gpus": 0, "include_dashboard": False},
    )
    cluster.add_node(num_cpus=2, num_gpus=1)
    join(cluster.address)
    cluster.wait_for_nodes()
    yield
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def refused(nodes, tmp_path, capsys):
    def run(*arguments, code=2):
        assert main([*ON_RAY, f"run_dir={tmp_path / 'run'}", *arguments]) == code
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert (tmp_path / "run").exists() == (code == 1)
        deadline = time.monotonic() + 20  # Ray tells of what an actor gives back after a while
        while ray.available_resources().get("CPU") != 4:
            assert time.monotonic() < deadline, "an actor is left"
            time.sleep(0.1)
        return error.strip()

    return run


def test_more_than_any_node_has(refused):
    assert refused("cluster.gpus_per_client=2") == (
        "cluster.gpus_per_client=2: the largest node of the cluster has 1 GPU; ask for less or add "
        "a node."
    )
    assert refused("cluster.cpus_per_client=3") == (
        "cluster.cpus_per_client=3: the largest node of the cluster has 2 CPU; ask for less or add "
        "a node."
    )


def test_a_device_that_the_actors_lack(refused, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)  # the driver's, not the actors'
    sentence = refused("cluster.num_actors=1", "cluster.gpus_per_client=1", "accelerator=cuda")
    assert sentence.startswith("accelerator=cuda: ")


@pytest.mark.slow  # it waits for its time limit
def test_actors_that_are_never_granted(refused):
    sentence = refused(
        "cluster.num_actors=5", "cluster.cpus_per_client=2", "cluster.start_timeout_s=20", code=1
    )
    assert re.fullmatch(
        r"cluster.start_timeout_s=20: [345] of 5 actors \(2 CPU, 0 GPU each\) were not granted or "
        r"not ready in time; .* is free, and .*; lower cluster.num_actors or add nodes.",
        sentence,
    )


@pytest.mark.usefixtures("nodes")
@pytest.mark.parametrize(
    ("accelerator", "told"), [("auto", 1), pytest.param("cpu", 0, marks=pytest.mark.slow)]
)
def test_a_gpu_that_a_run_leaves_idle_is_told_once(tmp_path, capsys, accelerator, told):
    arguments = [f"run_dir={tmp_path / 'run'}", "tracking.progress=lines"]
    assert main([*ON_RAY, f"accelerator={accelerator}", *arguments]) == 0
    shown = capsys.readouterr()
    assert (shown.out + shown.err).count("has a GPU, which this run does not use") == told


def test_a_cluster_without_a_gpu_names_the_choice_that_asked_for_one(monkeypatch):
    monkeypatch.setattr("coterie.distributed.cluster.live_nodes", lambda: [{"CPU": 2.0}])
    with pytest.raises(ConfigError, match=r"as cluster=gpu sets it: no node .* cluster=local"):
        free_actors(ClusterConfig(gpus_per_client=0.25))
