"""The room for whole runs on a running cluster."""

import pytest
import ray

from coterie.commands.compose import compose
from coterie.distributed.run_resources import RunResources, capacity, place_of

pytestmark = pytest.mark.ray


def test_a_clusters_cpus_are_shared_out(cluster):
    address = ray.get_runtime_context().gcs_address
    config = compose("experiment=fedmcc_digits", f"cluster.address='{address}'")
    assert place_of(config.cluster) == address
    assert capacity(config.cluster) == {"CPU": 6.0, "GPU": 0.0}
    assert ray.is_initialized()  # it was not ours to end
    room, two = (
        RunResources(),
        compose("experiment=fedmcc_digits", f"cluster.address='{address}'", "cluster.num_actors=2"),
    )
    assert [room.take(number, two) for number in range(4)] == [True, True, True, False]
    room.give_back(1)
    assert not room.take(4, config)  # five clients
    assert room.take(5, two)
