"""The autoencoder: its loss and rounds against a plain loop, and what is sent."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from coterie.contract import Plan
from coterie.contract.client import Batch
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
from tests.builders.plain_rounds import assert_same_weights, average_round, loaded

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
    def step(net: Any, batch: Batch, _: int) -> Tensor:
        images = batch["samples"].double() / 255
        return nn.functional.mse_loss(net["decoder"](net["encoder"](images)), images)

    networks = {"encoder": TinyEncoder().build(SHAPE), "decoder": build_generator(SHAPE, 6, 7, 2)}
    world, workload = loaded(networks, ran.start.slots), tiny_workload(CONFIG)
    for number in (1, 2):
        plan, adam = Plan(batch_size=8, epochs=2), partial(torch.optim.Adam, lr=1e-3)
        average_round(world, workload, (number, 0), plan, step, adam)
    assert_same_weights(world, ran.state.server.slots, 1e-10)


def test_a_linear_layer_may_make_representations_narrower() -> None:
    config = CONFIG.model_copy(update={"latent": 3})
    ran = federate(tiny_workload(config))
    model = ran.spy.model_for(ran.state.server, None).eval()
    samples = torch.from_numpy(ran.backend.worker.samples["train"])
    sent = ran.state.server.slots["encoder"]
    found = model.encoder.backbone(samples.double() / 255)
    found = found @ sent["encoder.latent.weight"].T + sent["encoder.latent.bias"]
    torch.testing.assert_close(model(samples).embedding, found)
    assert model(samples).embedding.shape == (sum(SIZES), 3)
    assert ran.state.server.slots["decoder"]["decoder.0.weight"].shape == (7, 3)
