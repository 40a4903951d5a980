"""`cluster.placement=strict_spread`: at most one of a run's actors on a node, whatever fits."""

import pytest
import ray
from ray.cluster_utils import Cluster

from coterie.distributed.nodes import node_of
from coterie.errors import RunError
from tests.builders.ray_processes import join
from tests.builders.runs import assert_same, run

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240), pytest.mark.usefixtures("no_cluster")]

SPREAD = ("executor=bare", "cluster.placement=strict_spread")


@pytest.fixture
def cluster():
    """A head and a node, each with room for five actors."""
    head = {"num_cpus": 5, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=5)
    join(cluster.address)
    cluster.wait_for_nodes()
    yield cluster
    ray.shutdown()
    cluster.shutdown()


class Places:
    """Notes the nodes of a run's actors before each phase; a third node joins after the second."""

    def __init__(self, cluster):
        self.cluster, self.seen = cluster, []

    def __call__(self, backend, phases):
        fleet = backend.fleet
        if phases == 2:
            self.cluster.add_node(num_cpus=5)
            self.cluster.wait_for_nodes()
            fleet.look()
        if phases == 3:
            ray.wait(list(fleet.joining.values()), timeout=60)
        if phases == 0:
            assign = fleet.assign
            fleet.assign = lambda tasks: self.note(assign(tasks))

    def note(self, assigned):
        placed, _ = assigned
        self.seen.append([node_of(actor) for actor, _ in placed])
        return assigned


@pytest.mark.slow
def test_each_actor_has_a_node_to_itself_and_a_new_node_gets_one(cluster):
    places = Places(cluster)
    ran = run(*SPREAD, hook=places)
    assert [len(set(nodes)) for nodes in places.seen] == [2, 2, 2, 3]
    assert [len(nodes) for nodes in places.seen] == [2, 2, 2, 3]
    assert_same(ran, run("executor=bare", "cluster=serial"))


@pytest.mark.slow
def test_more_actors_than_nodes_are_refused_with_their_number(cluster):
    with pytest.raises(RunError) as caught:
        run(*SPREAD, "cluster.num_actors=3", "cluster.start_timeout_s=10")
    assert str(caught.value).endswith(
        "cluster.placement=strict_spread puts one on each of its 2 nodes with room for any; lower "
        "cluster.num_actors or add nodes."
    )
