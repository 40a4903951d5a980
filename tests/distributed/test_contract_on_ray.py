"""Peer messages and a pool of models give the serial backend's bits on actors, too."""

from dataclasses import replace

import pytest
import torch

from coterie.config.schema import ClusterConfig
from coterie.contract.method import build_method
from coterie.distributed.backend import RayBackend
from coterie.execution.device import device_name
from coterie.execution.packing import Packed
from coterie.rounds.loop import Loop
from tests.builders.loops import make_workload, plain, run, start
from tests.builders.messenger import Messenger
from tests.builders.observers import Quiet
from tests.builders.pool import Pool

pytestmark = pytest.mark.ray


def on_ray(workload, actors):
    cluster = ClusterConfig(num_actors=actors)
    workload = replace(workload, config=workload.config.model_copy(update={"cluster": cluster}))
    backend = RayBackend(workload, lambda: None)
    try:
        method = build_method(workload.config.method, workload.task)
        loop = Loop(method, backend, workload, Quiet(), lambda state, committed: None)
        state = start(loop)
        loop.run(state)
        assert backend.devices == {device_name(torch.device("cpu"))}
        assert not any(isinstance(kept, Packed) for kept in state.states.values())
        state.states = {c: backend.fetch(handle) for c, handle in state.states.items()}
        state.peer_messages = {
            to: {by: backend.fetch(handle) for by, handle in messages.items()}
            for to, messages in state.peer_messages.items()
        }
        return state
    finally:
        backend.close()


CASES = {
    "peer_messages": (
        Messenger.Config(rounds=2, clients=4, cohorts=(1.0, (0, 2), 0.5)),
        (2, 3, 4, 5),
    ),
    "pool": (Pool.Config(rounds=3), (2, 3, 4, 5, 6)),
    "pool with failures": (Pool.Config(broken=(1,), diverged=(3,)), (2, 3, 4, 5, 6)),
}


@pytest.mark.parametrize("actors", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize(
    "case",
    [
        pytest.param("peer_messages", marks=pytest.mark.slow),
        "pool with failures",
        pytest.param("pool", marks=pytest.mark.slow),
    ],
)
def test_any_method_of_the_contract_runs_on_actors(cluster, case, actors):
    workload = make_workload(CASES[case][0], CASES[case][1])
    expected, _ = run(workload)
    assert plain(on_ray(workload, actors)) == plain(expected)
    if case == "peer_messages":
        assert expected.ledger.peer > 0
    if case == "pool with failures":
        assert expected.dropped == 2
