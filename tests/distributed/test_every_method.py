"""Every method on two actors, one of which is killed, gives the serial backend's bits."""

import os
import signal

import pytest
import ray

from tests.builders.every_method import CHOICES, small
from tests.builders.runs import assert_same, run

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.mark.parametrize("choice", CHOICES)
def test_on_two_actors_one_of_them_killed(cluster, choice):
    base = small(choice)
    alone = run("cluster=serial", "executor=bare", base=base)
    assert_same(run("cluster.num_actors=2", base=base), alone)
    killed = []
    moment = min(1, alone.phases - 1)  # what clients keep and have been sent is there by then

    def kill(backend, done):
        if done == moment:
            actor = backend.fleet.actors[0]
            killed.append(ray.get(actor.ready.remote()))
            os.kill(killed[0], signal.SIGKILL)

    ran = run("cluster.num_actors=2", "executor=bare", base=base, hook=kill)
    assert_same(ran, alone)
    assert killed
    assert ran.dropped == 0
    assert [failure for failure in ran.failures if "replaced, its clients run again" in failure]
