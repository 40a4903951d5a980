"""Clients that hang, and actors killed at random moments, on real actors."""

import os
import random
import signal
import threading

import pytest
import ray
from ray.exceptions import RayActorError

from coterie.commands.compose import compose
from coterie.errors import RunError
from coterie.execution.packing import unpack
from coterie.rounds.loop import Loop
from coterie.rounds.state import RunState
from coterie.run.setup import assemble, make_backend
from tests.builders.observers import Silent
from tests.builders.runs import SMALL, Ran, assert_same, run

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


def test_a_client_that_hangs_is_dropped_and_the_others_count(cluster):
    raises = run(*MISBEHAVES, "cluster=serial", "faults.on_client_failure=drop")
    hangs = run(
        *MISBEHAVES,
        "cluster.num_actors=2",
        "method.how=hang",
        "faults.client_timeout_s=1",
        "faults.on_client_failure=drop",
    )
    assert_same(hangs, raises)
    assert hangs.dropped == 1
    assert hangs.failures == [
        "round 1, representation: client 1 failed (took longer than faults.client_timeout_s=1); "
        "dropped from the phase"
    ]


def test_a_client_that_ends_its_process_every_time_ends_the_run(cluster):
    with pytest.raises(RunError, match=r"2 actors died in one phase.*look for memory running out"):
        run(*MISBEHAVES, "cluster.num_actors=1", "method.how=die", "cluster.max_actor_restarts=1")


class Killer(Silent):
    """Kills a process some time after a phase has begun."""

    def __init__(self, phase, delay, pid):
        super().__init__()
        self.phase, self.begun = phase, 0
        self.timer = threading.Timer(delay, os.kill, (pid, signal.SIGKILL))

    def phase_started(self, phase, cohort_size, total_rounds):
        if self.begun == self.phase:
            self.timer.start()
        self.begun += 1


class Sweep:
    """Runs FedMCC again and again on one fleet, an actor killed at a random moment of each."""

    def __init__(self, actors):
        self.assembly = assemble(compose(*SMALL, "executor=bare", f"cluster.num_actors={actors}"))
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
        kept = {c: unpack(self.backend.fetch(h)) for c, h in sorted(state.states.items())}
        states = {c: {k: v.clone() for k, v in t.items()} for c, t in kept.items()}
        ledger = state.ledger.down, state.ledger.up, state.ledger.peer
        return Ran(state.server.slots, states, ledger, state.failures, state.dropped), seconds

    def pid(self, victim):
        """Of an actor that lives: one may have been killed after its last share of a run."""
        actor = self.backend._fleet.actors[victim]
        try:
            return ray.get(actor.ready.remote())
        except RayActorError:
            return ray.get(self.backend._fleet.replace(actor).ready.remote())


def sweep(kills, seed, actors=2):
    """Kill so many times; how often in each phase, and how many kills cost a call."""
    swept, generator = Sweep(actors), random.Random(seed)
    try:
        swept.run(Silent())  # brings the actors' imports in
        undisturbed, seconds = swept.run(Silent())
        assert undisturbed.states  # the clients' target networks
        hits, cost = dict.fromkeys(range(4), 0), 0
        for _ in range(kills):
            phase = generator.randrange(4)
            delay = generator.uniform(0.0, min(seconds))
            killer = Killer(phase, delay, swept.pid(generator.randrange(actors)))
            ran, _ = swept.run(killer)
            killer.timer.join()
            assert_same(ran, undisturbed)
            assert ran.dropped == 0
            hits[phase] += 1
            cost += bool(ran.failures)
        return hits, cost
    finally:
        swept.backend.close()


@pytest.mark.parametrize("seed", [0])
def test_an_actor_killed_at_a_few_random_moments(cluster, seed):
    hits, _ = sweep(3, seed)
    assert sum(hits.values()) == 3


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_an_actor_killed_at_a_hundred_random_moments(cluster):
    hits, cost = sweep(100, seed=1)
    assert min(hits.values()) > 10  # of all four phases
    assert cost >= 50  # the others hit an actor that had done its share
