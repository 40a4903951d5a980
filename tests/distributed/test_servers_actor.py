"""`cluster.server=actor` where GPUs are scarce: the server's actor leaves them to the clients."""

import pytest
import ray

from tests.builders.runs import assert_same, run

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240), pytest.mark.usefixtures("no_cluster")]

ON_ONE_GPU = ("accelerator=cpu", "cluster.gpus_per_client=1", "cluster.start_timeout_s=60")


@pytest.fixture
def one_gpu():
    """A node with a GPU by its own account, and a CPU to spare."""
    ray.init(num_cpus=2, num_gpus=1, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.slow
def test_the_only_gpu_is_a_clients(one_gpu):
    ran = run("executor=bare", *ON_ONE_GPU, "cluster.server=actor")
    assert_same(ran, run("executor=bare", "cluster=serial"))
