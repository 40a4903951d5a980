"""How many runs fit side by side."""

import pytest

from coterie.distributed.room import HERE, Room, capacity, need, place_of
from ray_jobs.compose import compose

HELD = {"CPU": 8.0, "GPU": 1.0}


def config(*keys):
    return compose("experiment=fedmcc_digits", *keys)


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def room(**keys):
    return Room(_held={HERE: HELD}, **keys)


def fitting(room, config):
    return next(n for n in range(100) if not room.take(n, config))


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        (("cluster=serial",), {"CPU": 1.0, "GPU": 0.0}),
        (("cluster=serial", "cluster.threads_per_client=4"), {"CPU": 4.0, "GPU": 0.0}),
        ((), {"CPU": 5.0, "GPU": 0.0}),  # an actor for each of 5 clients
        (("partition.clients=50",), {"CPU": 8.0, "GPU": 0.0}),
        (("cluster.num_actors=2", "cluster.gpus_per_client=0.25"), {"CPU": 2.0, "GPU": 0.5}),
        (("partition=by_client",), HELD),  # nobody knows yet how many clients
    ],
)
def test_what_a_run_takes(keys, wanted):
    assert need(config(*keys), HELD) == wanted


def test_as_many_as_their_cpus_and_gpus_allow():
    assert fitting(room(), config("cluster=serial")) == 8
    assert fitting(room(), config()) == 1
    assert fitting(room(), config("cluster.num_actors=2")) == 4
    two = config("cluster.num_actors=2", "cluster.gpus_per_client=0.25")
    assert fitting(room(), two) == 2


def test_a_run_that_needs_more_than_there_is_runs_alone():
    free = room()
    assert free.take(0, config("partition.clients=50"))
    assert not free.take(1, config("cluster=serial"))
    free.give_back(0)
    assert free.take(1, config("cluster=serial"))


def test_a_limit_counts_runs_whatever_they_need():
    assert fitting(room(limit=3), config("partition.clients=50")) == 3


def test_this_machine_and_clusters_are_places_of_their_own(monkeypatch):
    assert place_of(config("cluster=serial").cluster) == HERE
    assert place_of(config().cluster) == HERE
    assert place_of(config("cluster.address='10.0.0.1:6379'").cluster) == "10.0.0.1:6379"
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.2:6379")
    assert place_of(config().cluster) == "10.0.0.2:6379"
    assert place_of(config("cluster=serial").cluster) == HERE
    free = Room(_held={HERE: {"CPU": 1.0, "GPU": 0.0}, "10.0.0.2:6379": {"CPU": 5.0, "GPU": 0.0}})
    assert free.take(0, config("cluster=serial"))
    assert free.take(1, config())
    assert not free.take(2, config())
    monkeypatch.delenv("RAY_ADDRESS")
    assert capacity(config().cluster)["CPU"] >= 1.0
