"""The autoencoder: its loss and rounds against a plain loop, and what is sent."""

import copy

import pytest
import torch
from torch import nn

from coterie.contract import Plan
from coterie.contract.client import ClientData
from coterie.contract.seeds import derive_seed
from coterie.execution.batches import SeededBatches
from coterie.modules.autoencoder import Autoencoder
from coterie.networks.gan import build_generator
from tests.builders.federation import (
    SHAPE,
    SIZES,
    Federated,
    TinyEncoder,
    federate,
    tiny_task,
    tiny_workload,
)

CONFIG = Autoencoder.Config(hidden=7, width=2, batch_size=8, epochs=2, rounds=2)


@pytest.fixture(scope="module")
def ran() -> Federated:
    return federate(tiny_workload(CONFIG))


def test_the_loss_is_the_mean_squared_error_of_plain_samples() -> None:
    module = Autoencoder(CONFIG, tiny_task()).build()
    nn.init.zeros_(module.decoder[-3].weight)  # a sigmoid of 0 is left: grey images
    nn.init.zeros_(module.decoder[-3].bias)
    samples = torch.randint(256, (6, *SHAPE), dtype=torch.uint8)
    loss = module.training_step({"samples": samples, "seed": 3}, 0)["loss"]
    wanted = ((samples.double() / 255 - 0.5) ** 2).mean()
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-12)


def test_encoder_and_decoder_cross_and_clients_keep_nothing(ran: Federated) -> None:
    for task in ran.spy.tasks:
        assert set(task.slots) == set(task.outcome.up) == {"encoder", "decoder"}
        assert not task.outcome.gathered
        assert set(task.outcome.metrics) == {"loss"}
        assert task.outcome.state is None


def test_two_rounds_are_those_of_a_plain_loop(ran: Federated) -> None:
    workload = tiny_workload(CONFIG)
    networks = {"encoder": TinyEncoder().build(SHAPE), "decoder": build_generator(SHAPE, 6, 7, 2)}
    world = nn.ModuleDict(networks).double()
    world.load_state_dict({n: t for slot in networks for n, t in ran.start.slots[slot].items()})
    for number in (1, 2):
        clients = []
        for client in range(len(SIZES)):
            net = copy.deepcopy(world).train()
            adam = torch.optim.Adam(net.parameters(), lr=1e-3)
            data = ClientData(samples=workload.samples["train"], rows=workload.parts[client])
            seed = derive_seed(5, "client", number, 0, client)
            source = SeededBatches(data, Plan(batch_size=8, epochs=2), seed)
            for batch in (batch for _ in range(2) for batch in source):
                images = batch["samples"].double() / 255
                adam.zero_grad()
                nn.functional.mse_loss(net["decoder"](net["encoder"](images)), images).backward()
                adam.step()
            clients.append(net.state_dict())
        for key, value in world.state_dict().items():
            if value.is_floating_point():
                shares = [n / sum(SIZES) * s[key] for n, s in zip(SIZES, clients, strict=True)]
                value.copy_(sum(shares))
    for slot in networks:
        for name, found in ran.state.server.slots[slot].items():
            torch.testing.assert_close(found, world.state_dict()[name], rtol=0, atol=1e-10)
