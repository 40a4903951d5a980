"""The backend, the number of actors and the death of one change no bit of the result."""

import os
import signal
import threading
import time

import numpy as np
import pytest
import ray

from coterie.distributed.actors import ClientActor
from coterie.distributed.backend import RayBackend
from tests.builders.runs import CCFC, assert_same, run

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def serial():
    return run("cluster=serial")


@pytest.mark.parametrize("actors", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 5))])
def test_any_number_of_actors_gives_the_serial_backends_bits(cluster, serial, actors):
    assert_same(run(f"cluster.num_actors={actors}"), serial)


@pytest.mark.slow
def test_the_plain_loop_in_actors_gives_the_serial_trainers_bits(cluster, serial):
    assert_same(run("cluster.num_actors=2", "executor=bare"), serial)


@pytest.mark.slow
def test_compiled_encoders_in_actors_give_the_serial_backends_bits(cluster):
    keys = ("executor=bare", "compile=default")
    assert_same(run("cluster.num_actors=2", *keys), run("cluster=serial", *keys))


@pytest.mark.slow
def test_five_actors_share_two_cpus(cluster, serial):
    assert_same(run("cluster.num_actors=5", "cluster.cpus_per_client=0.4"), serial)


@pytest.mark.slow
def test_updates_that_the_driver_sees_one_by_one_give_the_serial_backends_bits(cluster):
    keys = ("aggregation.rule=median", "aggregation.optimizer=adam")
    keys += ("participation.dropout_rate=0.2", "participation.straggler_rate=0.5")
    assert_same(run("cluster.num_actors=2", *keys), run("cluster=serial", *keys))


def test_compressed_updates_and_what_clients_keep_of_them_are_the_serial_backends(cluster):
    keys = ("aggregation.compression=topk", "aggregation.keep=0.05")
    on_actors, alone = run("cluster.num_actors=2", *keys), run("cluster=serial", *keys)
    assert_same(on_actors, alone)
    assert any(name.startswith("aggregation/compression/") for name in alone.states[0])


@pytest.mark.slow
def test_k_means_on_clients_and_server_gives_the_serial_backends_bits(cluster):
    on_actors = run("cluster.num_actors=2", base=CCFC)
    assert_same(on_actors, run("cluster=serial", base=CCFC))


ORCHESTRA = (
    "experiment=orchestra_digits",
    "data.limit=200",
    "partition=iid",
    "partition.clients=5",
    "encoder.width=8",
    "encoder.features=16",
    "method.rounds=2",
    "method.epochs=1",
    "method.hidden=16",
    "method.projection=8",
    "method.global_steps=20",
    "method.memory=24",
    "method.participation=0.6",
)


def test_orchestra_on_two_actors_gives_the_serial_backends_bits(cluster):
    alone = run("cluster=serial", "executor=bare", base=ORCHESTRA)
    assert_same(run("cluster.num_actors=2", base=ORCHESTRA), alone)
    assert alone.states == {}
    assert set(alone.server) == {"online", "target", "rotation", "centroids", "schedule"}


CPCFL = (
    "experiment=cpcfl_digits",
    "encoder.width=8",
    "encoder.features=16",
    "partition.clients=6",
    "method.rounds=4",
    "method.explore_rounds=2",
    "method.epochs=1",
    "method.participation=0.8",
)


@pytest.mark.slow
def test_a_pool_of_models_on_two_actors_gives_the_serial_backends_bits(cluster):
    alone = run("cluster=serial", "executor=bare", base=CPCFL)
    assert_same(run("cluster.num_actors=2", base=CPCFL), alone)
    assert alone.states == {}
    assert set(alone.server) == {f"{part}/{n}" for part in ("encoder", "head") for n in range(3)}


CFCL = (
    "data.limit=200",
    "encoder.width=8",
    "method.total_steps=12",
    "method.aggregate_every=5",
    "method.pull_every=4",
    "method.batch_size=8",
    "method.approx_size=15",
    "method.clusters=4",
)


@pytest.mark.slow
@pytest.mark.parametrize("actors", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize(
    "name", ["cfcl_digits", pytest.param("cfcl_digits_implicit", marks=pytest.mark.slow)]
)
def test_what_devices_exchange_on_actors_gives_the_serial_backends_bits(
    cluster, monkeypatch, name, actors
):
    """And it goes from actor to actor: during the run the driver reads no object."""
    base, read = (f"experiment={name}", *CFCL), []
    alone = run("cluster=serial", "executor=bare", base=base)
    fetched = RayBackend.fetch

    def fetch(backend, handle):
        assert read == ["over"], "the driver read what a device keeps or sends"
        return fetched(backend, handle)

    def over(backend, done):
        if done == alone.phases:
            read.append("over")

    monkeypatch.setattr(RayBackend, "fetch", fetch)
    assert_same(run(f"cluster.num_actors={actors}", base=base, hook=over), alone)
    pulled = {key for kept in alone.states.values() for key in kept if key.startswith("pulled/")}
    assert len(pulled) > 5


def test_another_seed_gives_other_bits(serial):
    other = run("cluster=serial", "seed=1")
    with pytest.raises(AssertionError):
        assert_same(other, serial)


def pids(backend):
    return [ray.get(actor.ready.remote()) for actor in backend.fleet.actors]


@pytest.mark.parametrize("phase", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_an_actor_killed_before_a_phase_is_replaced(cluster, serial, phase):
    def kill(backend, done):
        if done == phase:
            os.kill(pids(backend)[0], signal.SIGKILL)

    ran = run("cluster.num_actors=2", hook=kill)
    assert_same(ran, serial)
    assert len(ran.failures) == 1
    assert "replaced, its clients run again" in ran.failures[0]
    assert ran.dropped == 0


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.08])
def test_an_actor_killed_in_a_phase_is_replaced(cluster, serial, delay):
    killers = []

    def kill_soon(backend, done):
        if done == 1:
            victim = pids(backend)[1]
            killer = threading.Timer(delay, os.kill, (victim, signal.SIGKILL))
            killer.start()
            killers.append(killer)

    ran = run("cluster.num_actors=2", hook=kill_soon)
    for killer in killers:
        killer.join()
    assert_same(ran, serial)
    assert ran.dropped == 0


@pytest.mark.slow
def test_actors_that_a_stage_has_no_work_for_end_where_the_cluster_can_shrink(cluster, monkeypatch):
    from coterie.distributed import fleet

    fewer = ("participation.availability=[[0,1],[0,1],[0],[0]]", "executor=bare")
    alone, sizes = run("cluster=serial", *fewer), []
    for shrinks in (True, False):
        monkeypatch.setattr(fleet, "autoscales", lambda shrinks=shrinks: shrinks)
        seen = {}
        ran = run(
            "cluster.num_actors=2",
            *fewer,
            hook=lambda backend, done, seen=seen: seen.update({done: len(backend.fleet.actors)}),
        )
        assert_same(ran, alone)
        sizes.append([seen[done] for done in (1, 2, 3)])
    assert sizes == [[2, 2, 1], [2, 2, 2]]


@pytest.mark.slow
def test_actors_that_die_again_and_again_end_the_run(cluster):
    stop = threading.Event()

    def haunt(backend):
        while not stop.is_set():
            for actor in list(backend.fleet.actors):
                ray.kill(actor)
            time.sleep(0.05)

    def start(backend, done):
        if done == 1:
            threading.Thread(target=haunt, args=(backend,), daemon=True).start()

    from coterie.errors import RunError

    try:
        with pytest.raises(RunError, match="max_actor_restarts=1; check whether memory"):
            run("cluster.num_actors=1", "cluster.max_actor_restarts=1", hook=start)
    finally:
        stop.set()


class Probe(ClientActor):
    """Says how it holds the data."""

    def samples(self):
        array = self.worker.samples["train"]
        return array.flags.owndata, array.flags.writeable, str(array.dtype)


@pytest.mark.slow
def test_actors_view_the_data_and_do_not_copy_it(cluster):
    from coterie.commands.compose import compose
    from coterie.distributed.actors import StoredWorkload
    from coterie.run.setup import assemble

    assembly = assemble(compose("experiment=fedmcc_digits"))
    assert assembly.workload.samples["train"].dtype == np.uint8
    probe = ray.remote(Probe).remote(StoredWorkload.of(assembly.workload), None)
    assert ray.get(probe.samples.remote()) == (False, False, "uint8")
    ray.kill(probe)
