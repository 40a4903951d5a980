"""Nodes that come and go during a run: actors follow them, and nothing is lost or done twice."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster
from safetensors.torch import load_file

from coterie.commands.compose import compose
from coterie.run.federation import Federation
from tests.builders.observers import Silent
from tests.builders.runs import SMALL, assert_same, run

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240), pytest.mark.usefixtures("no_cluster")]

# Target networks of over 100 KiB, in stage 1: smaller ones lie with the driver, never lost.
LARGE_STATES = (
    *SMALL,
    "encoder.hidden=[512]",
    "method.representation_rounds=5",
    "method.clustering_rounds=1",
    "executor=bare",
    # The others have no task between the notice and the end of the node that has their states.
    "participation.availability=[[0,1,2,3,4],[0],[0],[0],[0,1,2,3,4],[0,1,2,3,4]]",
    "checkpoint.every=0",
    "evaluation.every=0",
    "evaluation.figures=false",
    "evaluation.linear_probe=false",
    "evaluation.knn=false",
)


@pytest.fixture
def cluster():
    """A head with one CPU."""
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


class Grows:
    """Adds a node when two rounds are over, and remembers how many actors each round used."""

    def __init__(self, cluster):
        self.cluster, self.used = cluster, []

    def __call__(self, backend, phases):
        fleet = backend.fleet
        if phases == 0:
            assign = fleet.assign
            fleet.assign = lambda tasks: self.note(assign(tasks))
        if phases == 2:
            self.cluster.add_node(num_cpus=1)
            self.cluster.wait_for_nodes()
            fleet.look()
        if phases == 3:
            ray.wait(list(fleet.joining.values()), timeout=60)

    def note(self, assigned):
        placed, _ = assigned
        self.used.append(len(placed))
        return assigned


@pytest.mark.slow
def test_a_node_added_in_round_2_is_used_by_round_4(cluster):
    grows = Grows(cluster)
    ran = run("executor=bare", "cluster.num_actors=auto", hook=grows)
    assert grows.used == [1, 1, 1, 2]
    assert_same(ran, run("executor=bare", "cluster=serial"))


class Drains(Silent):
    """Drains a node when two rounds are over, as before the end of a spot machine."""

    def __init__(self, cluster, node):
        super().__init__()
        self.cluster, self.node = cluster, node

    def phase_finished(self, record):
        if record.phase.round == 2:
            drain = ("drain-node", f"--address={self.cluster.address}")
            why = ("--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=spot")
            deadline = "--deadline-remaining-seconds=60"
            program = Path(sys.executable).with_name("ray")
            node = f"--node-id={self.node.node_id}"
            subprocess.run([program, *drain, node, *why, deadline], check=True)
        if record.phase.round == 4 and self.lives():
            self.cluster.remove_node(self.node, allow_graceful=False)

    def lives(self):
        return any(n["Alive"] and n["NodeID"] == self.node.node_id for n in ray.nodes())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_drained_node_hands_its_states_over(cluster, tmp_path):
    node = cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    view, on_ray, alone = Drains(cluster, node), tmp_path / "ray", tmp_path / "serial"
    Federation(compose(*LARGE_STATES, f"run_dir={on_ray}"), view).run()
    Federation(compose(*LARGE_STATES, "cluster=serial", f"run_dir={alone}"), Silent()).run()
    mine, theirs = (load_file(path / "model/model.safetensors") for path in (on_ray, alone))
    assert all(mine[name].equal(theirs[name]) for name in theirs)
    assert json.loads((on_ray / "summary.json").read_text())["failures"] == []
    rows = [json.loads(line) for line in (on_ray / "metrics.jsonl").open()]
    assert [row["round"] for row in rows if row["scope"] == "server"] == [1, 2, 3, 4, 5, 6]
    assert not view.lives()
    assert any("client states moved to the driver's node" in note for note in view.notes)
    assert "Actors: 1 (2 ended, as their node is about to go)." in view.notes
