"""Clients that hang, and actors killed at random moments, on real actors."""

import os
import random
import signal
import threading
import time

import pytest
import ray
from ray.exceptions import RayActorError

from coterie.commands.compose import compose
from coterie.errors import RunError
from coterie.rounds.loop import Loop
from coterie.rounds.state import RunState
from coterie.run.setup import assemble, make_backend
from tests.builders.every_method import CHOICES, small
from tests.builders.observers import Silent
from tests.builders.runs import SMALL, Ran, assert_same, fetched, run

pytestmark = pytest.mark.ray

MISBEHAVES = (
    "executor=bare",
    "method.target=tests.builders.misbehaves:Misbehaves",
    "method.clusters=10",
    *(
        f"method.{key}"
        for key in (
            "representation_rounds=2",
            "representation_epochs=1",
            "clustering_rounds=2",
            "clustering_epochs=1",
            "batch_size=32",
        )
    ),
)


@pytest.mark.ci
def test_a_client_that_hangs_is_dropped_and_the_others_count(cluster):
    raises = run(*MISBEHAVES, "cluster=serial", "faults.on_client_failure=drop")
    hangs = run(
        *MISBEHAVES,
        "cluster.num_actors=2",
        "method.how=hang",
        "faults.client_timeout_s=20",
        "faults.on_client_failure=drop",
    )
    assert_same(hangs, raises)
    assert hangs.dropped == 1
    assert hangs.failures == [
        "round 1, representation: client 1 failed (took longer than faults.client_timeout_s=20); "
        "dropped from the phase"
    ]


FEDAVG = ("experiment=fedavg_digits", "data.limit=200", "encoder=mlp", "encoder.hidden=[8]")


@pytest.mark.ci
@pytest.mark.parametrize("crashes", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_actors_that_crash_as_they_start_are_replaced_three_times(cluster, tmp_path, crashes):
    for number in range(crashes):
        (tmp_path / str(number)).touch()
    keys = (
        "method.target=tests.builders.crashes:Crashes",
        f"method.fuses={tmp_path}",
        f"method.driver={os.getpid()}",
        "method.rounds=1",
        "cluster.num_actors=1",
    )
    if crashes > 3:
        with pytest.raises(RunError, match=r"^An actor died while it started \("):
            run(*keys, base=FEDAVG)
    else:
        assert run(*keys, base=FEDAVG).failures == []
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_a_client_that_ends_its_process_every_time_ends_the_run(cluster):
    with pytest.raises(
        RunError, match=r"2 actors died in one phase.*check whether memory runs out"
    ):
        run(*MISBEHAVES, "cluster.num_actors=1", "method.how=die", "cluster.max_actor_restarts=1")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["die", "fork", "files"])
def test_a_client_that_ends_its_process_every_time_is_dropped_and_the_others_count(cluster, how):
    drop = "faults.on_client_failure=drop"
    raises = run(*MISBEHAVES, "cluster=serial", drop)
    dies = run(*MISBEHAVES, "cluster.num_actors=2", f"method.how={how}", drop)
    assert_same(dies, raises)
    assert dies.dropped == 1
    assert "client 1 failed (its process died in its tasks (ActorDiedError));" in dies.failures[-1]
    assert [failure.partition(":")[2][:16] for failure in dies.failures] == [
        " an actor failed",
        " an actor failed",
        " client 1 failed",
    ]


class Killer(Silent):
    """Sends a signal to a process some time after a phase has begun."""

    def __init__(self, phase, delay, pid, sent=signal.SIGKILL):
        super().__init__()
        self.phase, self.begun = phase, 0
        self.timer = threading.Timer(delay, self.hit, (pid, sent))

    def hit(self, pid, sent):
        os.kill(pid, sent)
        if sent == signal.SIGSTOP:  # as a machine that swaps: it goes on after a while
            time.sleep(1.0)
            os.kill(pid, signal.SIGCONT)

    def phase_started(self, phase, cohort_size, total_rounds):
        if self.begun == self.phase:
            self.timer.start()
        self.begun += 1


class Sweep:
    """Runs a method again and again on one fleet, a process hit at a random moment of each."""

    def __init__(self, actors, keys=SMALL):
        self.assembly = assemble(compose(*keys, "executor=bare", f"cluster.num_actors={actors}"))
        self.backend = make_backend(self.assembly.workload, lambda: None)

    def run(self, view):
        """One run; its result, and the seconds of its phases."""
        state, seconds = RunState(server=self.assembly.server), []
        Loop(
            self.assembly.method,
            self.backend,
            self.assembly.workload,
            view,
            lambda state, committed: seconds.append(committed.seconds),
        ).run(state)
        states = fetched(self.backend, state.states)
        ledger = state.ledger.down, state.ledger.up, state.ledger.peer
        return Ran(state.server.slots, states, ledger, state.failures, state.dropped), seconds

    def pid(self, victim):
        """Of an actor that lives: one may have been killed after its last share of a run."""
        actor = self.backend.fleet.actors[victim]
        try:
            return ray.get(actor.ready.remote())
        except RayActorError:
            return ray.get(self.backend.fleet.replace(actor).ready.remote())


def sweep(kills, seed, actors=2, keys=SMALL, sent=signal.SIGKILL):
    """Hit so many times; how often in each phase, and how many hits cost a call."""
    swept, generator = Sweep(actors, keys), random.Random(seed)
    try:
        swept.run(Silent())  # brings the actors' imports in
        undisturbed, seconds = swept.run(Silent())
        assert undisturbed.states or keys is not SMALL  # the clients' target networks
        hits, cost = dict.fromkeys(range(len(seconds)), 0), 0
        for _ in range(kills):
            phase = generator.randrange(len(seconds))
            delay = generator.uniform(0.0, min(seconds))
            chosen = generator.randrange(swept.backend.actors)  # one, of a centralised method
            killer = Killer(phase, delay, swept.pid(chosen), sent)
            ran, _ = swept.run(killer)
            killer.timer.join()
            assert_same(ran, undisturbed)
            assert ran.dropped == 0
            hits[phase] += 1
            cost += bool(ran.failures)
        return hits, cost
    finally:
        swept.backend.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0])
def test_an_actor_killed_at_a_few_random_moments(cluster, seed):
    hits, _ = sweep(3, seed)
    assert sum(hits.values()) == 3


@pytest.mark.slow
def test_an_actor_stopped_for_a_while(cluster):
    hits, _ = sweep(2, 3, sent=signal.SIGSTOP)
    assert sum(hits.values()) == 2


KILLS = 5
"""Of each method in `make test-all`; with the hundred of FedMCC they are more than 200."""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("choice", CHOICES)
def test_an_actor_of_every_method_killed_a_few_times(cluster, choice):
    hits, _ = sweep(KILLS, seed=choice, keys=small(choice))
    assert sum(hits.values()) == KILLS


def test_every_method_is_in_a_sweep_of_two_hundred_kills():
    assert 100 + KILLS * len(CHOICES) >= 200
    assert {"fedmcc", "ccfc", "orchestra", "cfcl", "cpcfl", "concord", "kmeans"} <= set(CHOICES)


@pytest.mark.slow
def test_states_larger_than_the_object_store_are_spilled(no_cluster):
    """Clients keep over 100 MiB, the store holds 80."""
    wide = "encoder.hidden=[4000]", "encoder.features=1900", "method.projection=16"
    keys = (*SMALL, *wide, "method.representation_rounds=2", "method.clustering_rounds=0")
    plain = run("cluster=serial", "executor=bare", base=keys)
    kept = sum(t.nbytes for state in plain.states.values() for t in state.values())
    assert kept > 100 * 2**20
    options = {"include_dashboard": False, "log_to_driver": False}
    ray.init(address="local", num_cpus=2, object_store_memory=80 * 2**20, **options)
    try:
        assert_same(run("executor=bare", "cluster.num_actors=1", base=keys), plain)
    finally:
        ray.shutdown()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_an_actor_killed_at_a_hundred_random_moments(cluster):
    hits, cost = sweep(100, seed=1)
    assert min(hits.values()) > 10  # of all four phases
    assert cost >= 50  # the others hit an actor that had done its share
