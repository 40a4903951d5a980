"""Federated averaging as a plain loop, beside which a method's rounds are held."""

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from coterie.contract import Plan
from coterie.contract.client import Batch, ClientData
from coterie.contract.seeds import derive_seed
from coterie.execution.backend import Workload
from coterie.execution.batches import SeededBatches

Step = Callable[[nn.Module, Batch, int], Tensor]
"""The loss of a client's network and batch; the last argument is the client."""


def loaded(networks: Mapping[str, nn.Module], slots: Mapping[str, Any]) -> nn.ModuleDict:
    """The networks in float64, with all weights of the slots, whose names begin with theirs."""
    world = nn.ModuleDict(networks).double()
    world.load_state_dict({n: t for slot in slots.values() for n, t in slot.items()})
    return world


def batches_of(workload: Workload, client: int, at: tuple[int, int], plan: Plan) -> Iterator[Batch]:
    """A client's batches in the phase with this round and step."""
    data = ClientData(samples=workload.samples["train"], rows=workload.parts[client])
    seed = derive_seed(workload.config.seed, "client", *at, client)
    source = SeededBatches(data, plan, seed)
    for _ in range(plan.epochs or 0):
        yield from source


def average_round(
    world: nn.Module,
    workload: Workload,
    at: tuple[int, int],
    plan: Plan,
    step: Step,
    optimizer: Callable[[Any], torch.optim.Optimizer],
) -> None:
    """Train a copy of the world on each client, and set the world to their weighted mean."""
    clients, sizes = [], [len(part) for part in workload.parts]
    for client in range(len(sizes)):
        net = copy.deepcopy(world).train()
        chosen = optimizer(net.parameters())
        for batch in batches_of(workload, client, at, plan):
            chosen.zero_grad()
            step(net, batch, client).backward()
            chosen.step()
        clients.append(net.state_dict())
    for key, value in world.state_dict().items():
        if value.is_floating_point():
            value.copy_(sum(n / sum(sizes) * s[key] for n, s in zip(sizes, clients, strict=True)))


def assert_same_weights(world: nn.Module, slots: Mapping[str, Any], slack: float) -> None:
    """All tensors of the slots are the world's."""
    wanted = world.state_dict()
    for slot in slots.values():
        for name, found in slot.items():
            torch.testing.assert_close(found, wanted[name], rtol=0, atol=slack)
