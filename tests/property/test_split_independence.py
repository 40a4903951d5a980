"""Exact k-means, Concord and TURTLE: the same bits for every split of the samples over clients."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from coterie.config.component import Component
from coterie.config.partition import PartitionConfig
from coterie.config.schema import ClusterConfig, RunConfig
from coterie.contract import Task
from coterie.contract.phase import ServerState
from coterie.execution.backend import Workload
from coterie.execution.serial import SerialBackend
from coterie.modules.concord import Concord
from coterie.modules.kmeans import KMeans
from coterie.modules.turtle import Turtle
from coterie.networks.encoders import ConvNet2, EncoderConfig, Raw
from coterie.networks.orientations import Orientations
from coterie.rounds.loop import Loop
from coterie.rounds.state import RunState
from tests.builders.observers import Silent

pytestmark = pytest.mark.ci

SAMPLES = (load_digits().images[:600, None] * 255 / 16).round().astype(np.uint8)
METHODS: dict[str, tuple[Component, EncoderConfig]] = {
    "kmeans": (KMeans.Config(clusters=10, restarts=3, iterations=12), Raw()),
    "concord": (Concord.Config(clusters=10, prototypes=120), Orientations(cells=4)),
    "photographs": (
        Concord.Config(clusters=10, prototypes=120, restarts=2, refits=3),
        ConvNet2(width=4, features=24),
    ),
    "turtle": (Turtle.Config(clusters=10, iterations=12, restarts=2), Raw()),
}


def trained(name: str, parts: list[np.ndarray]) -> ServerState:
    """The last state of a run over these parts of the samples."""
    method, encoder = METHODS[name]
    anything = ClusterConfig()
    fields: dict[str, Any] = {"data": anything, "augmentation": anything}
    fields["partition"] = PartitionConfig()
    workload = Workload(
        config=RunConfig(method=method, encoder=encoder, seed=3, accelerator="cpu", **fields),
        task=Task(shape=(1, 8, 8), classes=10, encoder=encoder, augmentation=anything),
        samples={"train": SAMPLES},
        parts=parts,
        labels=None,
    )
    backend = SerialBackend(workload, lambda: None)
    loop = Loop(backend.worker.method, backend, workload, Silent(), lambda state, done: None)
    sizes = {client: len(rows) for client, rows in enumerate(parts)}
    state = RunState(server=loop.method.init(sizes, 3))
    loop.run(state)
    return state.server


@pytest.fixture(scope="module", params=METHODS)
def whole(request: pytest.FixtureRequest) -> tuple[str, ServerState]:
    return request.param, trained(request.param, [np.arange(len(SAMPLES))])


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), clients=st.integers(2, 30), uneven=st.booleans())
def test_any_split_gives_the_same_bits(
    whole: tuple[str, ServerState], seed: int, clients: int, uneven: bool
) -> None:
    name, expected = whole
    generator = np.random.default_rng(seed)
    shares = generator.dirichlet(np.full(clients, 0.3 if uneven else 100.0))
    owner = generator.choice(clients, len(SAMPLES), p=shares)
    parts = [np.flatnonzero(owner == client) for client in range(clients)]
    found = trained(name, [generator.permutation(part) for part in parts if len(part)])
    assert found.metadata == expected.metadata
    assert found.slots.keys() == expected.slots.keys()
    for slot, tensors in expected.slots.items():
        for key, value in tensors.items():
            assert torch.equal(found.slots[slot][key], value), (slot, key)


def test_clients_of_one_class_are_a_split_too(whole: tuple[str, ServerState]) -> None:
    name, expected = whole
    digits = load_digits().target[: len(SAMPLES)]
    found = trained(name, [np.flatnonzero(digits == digit) for digit in range(10)])
    assert found.metadata == expected.metadata
