"""Clients that hang, and actors killed at random moments, on real actors."""

import os
import random
import signal
import threading
import time

import pytest
import ray
from ray.exceptions import RayActorError

from coterie.engine.loop import Loop, RunState
from coterie.engine.packing import unpack
from coterie.engine.setup import assemble, make_backend
from coterie.errors import RunError
from ray_jobs.compose import compose
from tests.distributed.runs import SMALL, Ran, Silent, assert_same, run

pytestmark = pytest.mark.ray

MISBEHAVES = (
    "executor=loop",
    "method.target=tests.methods_for_tests.misbehaves:Misbehaves",
    "method.clusters=10",
    *(f"method.{key}" for key in ("representation_rounds=2", "representation_epochs=1",
                                  "clustering_rounds=2", "clustering_epochs=1", "batch_size=32")),
)  # fmt: skip


def test_a_client_that_hangs_is_dropped_and_the_others_count(cluster):
    raises = run(*MISBEHAVES, "cluster=serial", "faults.on_client_failure=drop")
    hangs = run(
        *MISBEHAVES, "cluster.num_actors=2", "method.how=hang", "faults.client_timeout_s=1",
        "faults.on_client_failure=drop",
    )  # fmt: skip
    assert_same(hangs, raises)
    assert hangs.dropped == 1
    assert hangs.failures == [
        "round 1, representation: client 1 failed (took longer than faults.client_timeout_s=1); "
        "dropped from the phase"
    ]


def test_a_client_that_ends_its_process_every_time_ends_the_run(cluster):
    with pytest.raises(RunError, match=r"2 actors died in one phase.*look for memory running out"):
        run(
            *MISBEHAVES, "cluster.num_actors=1", "method.how=die", "cluster.max_actor_restarts=1"
        )  # fmt: skip


class Sweep:
    """Runs FedMCC again and again on one fleet, an actor killed at a random moment of each."""

    def __init__(self, actors):
        self.assembly = assemble(compose(*SMALL, "executor=loop", f"cluster.num_actors={actors}"))
        self.backend = make_backend(self.assembly.workload, lambda: None)

    def run(self, kill_at=None, victim=0):
        """One run; its result, and the phase that was under way when the actor was killed."""
        state, hit = RunState(server=self.assembly.server), []
        pids = [self.pid(actor) for actor in list(self.backend._fleet.actors)]

        def kill():
            hit.append(state.phases)
            os.kill(pids[victim % len(pids)], signal.SIGKILL)

        killer = threading.Timer(kill_at or 0.0, kill)
        loop = Loop(
            self.assembly.method, self.backend, self.assembly.workload, Silent(), lambda s, c: None
        )
        if kill_at is not None:
            killer.start()
        loop.run(state)
        if kill_at is not None:
            killer.join()
        kept = {c: unpack(self.backend.fetch(h)) for c, h in sorted(state.states.items())}
        states = {c: {k: v.clone() for k, v in t.items()} for c, t in kept.items()}
        ledger = state.ledger.down, state.ledger.up, state.ledger.peer
        return Ran(state.server.slots, states, ledger, state.failures, state.dropped), hit

    def pid(self, actor):
        """Of an actor that lives: one may have been killed after its last share of the last run."""
        try:
            return ray.get(actor.ready.remote())
        except RayActorError:
            return ray.get(self.backend._fleet.replace(actor).ready.remote())


def sweep(kills, seed, actors=2):
    """Kill so many times; how often each phase was hit, and how many runs saw the loss."""
    swept, generator = Sweep(actors), random.Random(seed)
    try:
        swept.run()  # brings the actors' imports in
        started = time.perf_counter()
        undisturbed, _ = swept.run()
        seconds = time.perf_counter() - started
        assert undisturbed.states  # the clients' target networks
        hits, seen = {}, 0
        for _ in range(kills):
            ran, hit = swept.run(generator.uniform(0.0, seconds), generator.randrange(actors))
            assert_same(ran, undisturbed)
            assert ran.dropped == 0
            hits[hit[0]] = hits.get(hit[0], 0) + 1
            seen += bool(ran.failures)
        return hits, seen
    finally:
        swept.backend.close()


@pytest.mark.parametrize("seed", [0])
def test_an_actor_killed_at_a_few_random_moments(cluster, seed):
    hits, _ = sweep(3, seed)
    assert sum(hits.values()) == 3


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_an_actor_killed_at_a_hundred_random_moments(cluster):
    hits, seen = sweep(100, seed=1)
    assert sum(hits.values()) == 100
    assert set(hits) >= {0, 1, 2, 3}  # all four phases were hit
    assert seen >= 50  # most kills cost a call; the others hit an actor that had done its share
