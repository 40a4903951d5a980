"""A node is killed, or cut off, with the clients' states on it; the run completes without it."""

import json
from contextlib import suppress

import psutil
import pytest
import ray
from ray.cluster_utils import Cluster
from safetensors.torch import load_file

from coterie.commands.compose import compose
from coterie.run.federation import Federation
from tests.builders.observers import Silent
from tests.builders.runs import SMALL

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240), pytest.mark.usefixtures("no_cluster")]

# Target networks of over 100 KiB, in stage 1: smaller ones lie with the driver, never lost.
RUN = (
    *SMALL,
    "encoder.hidden=[512]",
    "method.representation_rounds=4",
    "method.clustering_rounds=1",
    "executor=bare",
    "evaluation.figures=false",
    "evaluation.linear_probe=false",
    "evaluation.knn=false",
)
# Nodes are taken for dead after 1.5 s in place of 15.
QUICK = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 500,
    "health_check_failure_threshold": 3,
}


@pytest.fixture
def nodes():
    """A head with one CPU and a node with two."""
    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": QUICK}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.node, cluster.cut_off = cluster.add_node(num_cpus=2), []
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    for process in cluster.cut_off:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("serial") / "run"
    Federation(compose(*RUN, "cluster=serial", f"run_dir={run_dir}"), Silent()).run()
    return load_file(run_dir / "model" / "model.safetensors")


class Removes(Silent):
    """Kills the cluster's node when a phase is over."""

    def __init__(self, cluster, phase):
        super().__init__()
        self.cluster, self.phase, self.phases = cluster, phase, 0

    def phase_finished(self, record):
        self.phases += 1
        if self.phases == self.phase:
            self.cluster.remove_node(self.cluster.node, allow_graceful=False)


class CutsOff(Removes):
    """Stops the node's processes in place, which then answer nobody, as behind a partition."""

    def phase_finished(self, record):
        self.phases += 1
        if self.phases == self.phase:
            self.cluster.cut_off = processes(self.cluster.node)
            for process in self.cluster.cut_off:
                process.suspend()


def processes(node):
    """A node's processes, its actors among them."""
    own = [psutil.Process(e.process.pid) for each in node.all_processes.values() for e in each]
    return [*own, *(child for process in own for child in process.children(recursive=True))]


def run(cluster, tmp_path, *overrides, seen=Removes):
    view = seen(cluster, 3)
    config = compose(*RUN, f"run_dir={tmp_path / 'run'}", *overrides)
    result = Federation(config, view).run()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    rounds = [row["round"] for row in rows if row["scope"] == "server"]
    return result, view, summary, rounds, load_file(tmp_path / "run/model/model.safetensors")


def same(a, b):
    return a.keys() == b.keys() and all(a[key].equal(b[key]) for key in a)


# The states of round 3 lie on the nodes alone: a checkpoint would have brought them to the driver.
@pytest.mark.ci
@pytest.mark.parametrize(("every", "back"), [(2, 2), pytest.param(0, 0, marks=pytest.mark.slow)])
def test_rewind_gives_the_undisturbed_runs_bits(nodes, tmp_path, undisturbed, every, back):
    result, view, summary, rounds, model = run(nodes, tmp_path, f"checkpoint.every={every}")
    assert same(model, undisturbed)
    assert (result.exit_code, summary["status"]) == (0, "completed")
    assert rounds == [1, 2, 3, 4, 5]
    (lost,) = [f for f in summary["failures"] if "the states of clients" in f]
    assert lost.startswith("round 4: the states of clients [")
    assert lost.endswith(f"were lost with their node; the run went back to the end of round {back}")
    assert f"{lost}." in view.notes


@pytest.mark.slow
@pytest.mark.timeout(480)
def test_a_node_that_is_cut_off_counts_as_lost(nodes, tmp_path, undisturbed):
    keys = "checkpoint.every=2"
    result, _, summary, rounds, model = run(nodes, tmp_path, keys, seen=CutsOff)
    (raylet,) = [process for process in nodes.cut_off if process.name() == "raylet"]
    assert raylet.status() == psutil.STATUS_STOPPED
    assert same(model, undisturbed)
    assert (result.exit_code, summary["status"]) == (0, "completed")
    assert rounds == [1, 2, 3, 4, 5]
    assert any("the run went back to the end of round 2" in f for f in summary["failures"])


@pytest.mark.slow
def test_stale_takes_only_the_lost_clients_back(nodes, tmp_path, undisturbed):
    overrides = "checkpoint.every=2", "faults.on_state_loss=stale"
    result, view, summary, rounds, model = run(nodes, tmp_path, *overrides)
    assert not same(model, undisturbed)
    assert (result.exit_code, summary["status"]) == (0, "completed")
    assert rounds == [1, 2, 3, 4, 5]
    assert view.phases == 5
    (lost,) = [f for f in summary["failures"] if "the states of clients" in f]
    assert lost.endswith("were lost with their node; they go on from those of round 2")
