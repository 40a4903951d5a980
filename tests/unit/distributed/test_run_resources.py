"""How many runs fit side by side."""

import pytest

from coterie.commands.compose import compose
from coterie.distributed.run_resources import HERE, RunResources, capacity, need, place_of

HELD = {"CPU": 8.0, "GPU": 1.0}


def config(*keys):
    return compose("experiment=fedmcc_digits", *keys)


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def room(**keys):
    return RunResources(_held={HERE: HELD}, **keys)


def fitting(room, config):
    return next(n for n in range(100) if not room.take(n, config))


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        (("cluster=serial",), {"CPU": 1.0, "GPU": 1.0}),  # it trains on the GPU
        (("cluster=serial", "accelerator=cpu"), {"CPU": 1.0, "GPU": 0.0}),
        (("cluster=serial", "cluster.threads_per_client=4"), {"CPU": 4.0, "GPU": 1.0}),
        ((), {"CPU": 5.0, "GPU": 0.0}),  # an actor for each of 5 clients
        (("partition.clients=50",), {"CPU": 8.0, "GPU": 0.0}),
        (("cluster.num_actors=2", "cluster.gpus_per_client=0.25"), {"CPU": 2.0, "GPU": 0.5}),
        (("partition=by_client",), HELD),  # nobody knows yet how many clients
    ],
)
def test_what_a_run_takes(keys, wanted):
    assert need(config(*keys), HELD) == wanted


def test_as_many_as_their_cpus_and_gpus_allow():
    assert fitting(room(), config("cluster=serial")) == 1
    assert fitting(room(), config("cluster=serial", "accelerator=cpu")) == 8
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
    free = RunResources(
        _held={HERE: {"CPU": 1.0, "GPU": 0.0}, "10.0.0.2:6379": {"CPU": 5.0, "GPU": 0.0}}
    )
    assert free.take(0, config("cluster=serial"))
    assert free.take(1, config())
    assert not free.take(2, config())
    monkeypatch.delenv("RAY_ADDRESS")
    assert capacity(config().cluster)["CPU"] >= 1.0


def given(gpus, *keys, runs=4, **room_keys):
    """The GPUs of so many runs begun at once on a machine that has `gpus`; None has to wait."""
    free = RunResources(_held={HERE: {"CPU": 64.0, "GPU": float(gpus)}}, **room_keys)
    taken = [free.take(number, config(*keys)) for number in range(runs)]
    found = [free.environment(number) if taken[number] else None for number in range(runs)]
    return [e and e.get("CUDA_VISIBLE_DEVICES") for e in found], free


def test_runs_on_one_machine_get_gpus_of_their_own():
    assert given(2, "cluster=serial")[0] == ["0", "1", None, None]
    half = "cluster.num_actors=2", "cluster.gpus_per_client=0.25"
    assert given(2, *half)[0] == ["0", "1", "0", "1"]
    wide = "cluster.num_actors=2", "cluster.gpus_per_client=1"
    assert given(4, *wide)[0] == ["0,1", "2,3", None, None]
    # Two slices of 0.49 lie on a GPU: five are 2.45 GPUs, but lie on three.
    five = "cluster.num_actors=5", "cluster.gpus_per_client=0.49"
    assert given(4, *five)[0] == ["0,1,2", None, None, None]
    assert given(2, *five)[0] == ["0,1", None, None, None]


def test_a_gpu_that_is_given_back_is_handed_out_again():
    found, free = given(3, "cluster=serial", runs=3)
    assert found == ["0", "1", "2"]
    free.give_back(1)
    assert free.take(3, config("cluster=serial"))
    assert free.environment(3) == {"CUDA_VISIBLE_DEVICES": "1"}


def test_a_limit_spreads_runs_over_the_gpus_even_if_they_share_one():
    assert given(2, "cluster=serial", limit=3)[0] == ["0", "1", "0", None]


def test_gpus_keep_the_names_that_they_have_here(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-7a")
    assert given(2, "cluster=serial", runs=2)[0] == ["5", "GPU-7a"]


def test_nothing_is_set_where_no_gpu_is_used():
    assert given(0, "cluster=serial", runs=1)[1].environment(0) == {}
    assert given(2, "cluster=serial", "accelerator=cpu", runs=1)[1].environment(0) == {}
    assert given(2, runs=1)[1].environment(0) == {}
