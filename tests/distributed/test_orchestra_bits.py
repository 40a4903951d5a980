"""Orchestra on actors: the serial backend's bits, in its first phase and in its rounds."""

import pytest

from tests.distributed.runs import assert_same, run

pytestmark = pytest.mark.ray

SMALL = (
    "experiment=orchestra_digits", "data.limit=200", "partition=iid", "partition.clients=5",
    "encoder.width=8", "encoder.features=16", "method.rounds=2", "method.epochs=1",
    "method.hidden=16", "method.projection=8", "method.global_steps=20", "method.memory=24",
    "method.participation=0.6",
)  # fmt: skip


def test_two_actors_give_the_serial_backends_bits(cluster):
    serial = run("cluster=serial", "executor=loop", small=SMALL)
    assert_same(run("cluster.num_actors=2", small=SMALL), serial)
    assert serial.states == {}
    assert set(serial.server) == {"online", "target", "rotation", "centroids", "schedule"}
