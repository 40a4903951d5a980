"""A tiny federation on the serial backend that remembers every task, for the methods' tests."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.aggregation.compose import compose_stages
from coterie.aggregation.noise import NoiseLedger
from coterie.config.component import Component
from coterie.config.partition import PartitionConfig
from coterie.config.schema import ClusterConfig, RunConfig
from coterie.contract import Phase, Task, WeightedUpdate
from coterie.contract.seeds import derive_seed
from coterie.datamodules.augmentations import DigitsAugmentation
from coterie.execution.backend import Workload
from coterie.execution.packing import unpack
from coterie.execution.serial import SerialBackend
from coterie.networks.encoders import Encoder, EncoderConfig
from coterie.rounds.loop import Committed, Loop
from coterie.rounds.state import RunState
from tests.builders.observers import Silent

torch.set_num_threads(1)  # tensors this small only lose by threads

SIZES = (13, 22, 9)
"""Samples of the three clients: with batches of 8 their last ones hold 5, 6 and 1 (skipped)."""
SHAPE = (1, 8, 8)


class TinyEncoder(EncoderConfig):
    """Linear, BatchNorm, ReLU, Linear: the smallest encoder with running statistics."""

    def build(self, shape: tuple[int, ...]) -> Encoder:
        layers = [nn.Flatten(), nn.Linear(64, 8, bias=False), nn.BatchNorm1d(8)]
        return Encoder(nn.Sequential(*layers, nn.ReLU(), nn.Linear(8, 6)), 6)


def tiny_task(dtype: torch.dtype = torch.float64) -> Task:
    return Task(
        shape=SHAPE,
        classes=3,
        encoder=TinyEncoder(),
        augmentation=DigitsAugmentation(),
        dtype=dtype,
    )


def tiny_workload(method: Component, *, needs_labels: bool = False, **run: Any) -> Workload:
    """Three clients of different size with random images; `run` are keys of the RunConfig."""
    generator = np.random.default_rng(0)
    samples = generator.integers(0, 256, (sum(SIZES), *SHAPE), dtype=np.uint8)
    labels = generator.integers(0, 3, sum(SIZES)).astype(np.int64)
    keys: dict[str, Any] = {"executor": "bare", "precision": "64-true", "seed": 5, **run}
    keys.setdefault("cluster", ClusterConfig(backend="serial"))
    config = RunConfig(
        method=method,
        data=ClusterConfig(),  # any component: the samples are given
        partition=PartitionConfig(),
        encoder=TinyEncoder(),
        augmentation=DigitsAugmentation(),
        **keys,
    )
    dtypes = {"64-true": torch.float64, "bf16-true": torch.bfloat16}
    rows = np.random.default_rng(1).permutation(sum(SIZES))
    return Workload(
        config=config,
        task=tiny_task(dtypes.get(config.precision, torch.float32)),
        samples={"train": samples},
        parts=[np.sort(part) for part in np.split(rows, np.cumsum(SIZES)[:-1])],
        labels=labels if needs_labels else None,
    )


@dataclass(frozen=True, kw_only=True)
class SpiedTask:
    """What one client's task was given and what it gave, copied."""

    phase: Phase
    client: Any
    slots: Mapping[str, Mapping[str, Tensor]]
    outcome: Any


@dataclass
class Spy:
    """A method that remembers its clients' tasks and its server half's calls."""

    method: Any
    tasks: list[SpiedTask] = field(default_factory=list)
    served: list[tuple[Any, ...]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.method, name)

    def client(self, client: Any, phase: Phase, slots: Any) -> Any:
        outcome = self.method.client(client, phase, slots)
        given = {name: copied(tensors) for name, tensors in slots.items()}
        self.tasks.append(SpiedTask(phase=phase, client=client, slots=given, outcome=outcome))
        return outcome

    def server(self, server: Any, phase: Phase, means: Any, gathered: Any) -> Any:
        after = self.method.server(server, phase, means, gathered)
        self.served.append((server, phase, means, gathered, after))
        return after


@dataclass(frozen=True, kw_only=True)
class Federated:
    """A finished tiny federation."""

    start: Any
    state: RunState
    spy: Spy
    commits: list[Committed]
    backend: SerialBackend
    config: Any

    @property
    def kept(self) -> dict[int, dict[str, Tensor]]:
        return {client: unpack(handle) for client, handle in self.state.states.items()}


def federate(workload: Workload, secret: bytes = b"secret") -> Federated:
    """Run the workload to its end."""
    backend = SerialBackend(workload, lambda: None)
    spy = Spy(backend.worker.method)
    backend.worker.method = spy
    sizes = {client: len(rows) for client, rows in enumerate(workload.parts)}
    start = spy.init(sizes, derive_seed(workload.config.seed, "init"))
    state, commits = RunState(server=start), []
    loop = Loop(spy, backend, workload, Silent(), lambda _, done: commits.append(done))
    ledger = NoiseLedger(secret) if secret else None
    loop.aggregation = compose_stages(workload.config, spy, ledger)
    loop.run(state)
    return Federated(
        start=start,
        state=state,
        spy=spy,
        commits=commits,
        backend=backend,
        config=workload.config.method,
    )


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in tensors.items()}


def slow_mean(contributions: list[WeightedUpdate]) -> dict[str, Tensor]:
    """Σ_k n_k/n P_k, term by term in float64."""
    total = sum(mean.weight for mean in contributions)
    mean = {}
    for name in contributions[0].tensors:
        terms = [c.weight / total * c.tensors[name].double() for c in contributions]
        mean[name] = torch.stack(terms).sum(dim=0)
    return mean


def same_bits(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)
