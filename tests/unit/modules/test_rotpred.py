"""RotPred and SpecLoss: what they compute, send and keep."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from coterie.contract import Plan
from coterie.contract.client import ClientData
from coterie.contract.seeds import derive_seed
from coterie.errors import ConfigError
from coterie.execution.batches import SeededBatches
from coterie.modules.rotpred import RotPred
from coterie.modules.specloss import SpecLoss
from tests.builders.federation import (
    SHAPE,
    SIZES,
    Federated,
    TinyEncoder,
    federate,
    tiny_task,
    tiny_workload,
)

RATE, VELOCITY, DECAY = 0.2, 0.6, 0.01
SMALL = {"hidden": 7, "projection": 5, "batch_size": 8, "epochs": 2, "rounds": 2}
CONFIG = RotPred.Config(**SMALL, learning_rate=RATE, weight_decay=DECAY, sgd_momentum=VELOCITY)


@pytest.fixture(scope="module")
def ran() -> Federated:
    return federate(tiny_workload(CONFIG))


def test_an_untrained_head_of_zeros_has_log_4() -> None:
    module = RotPred(CONFIG, tiny_task()).build()
    nn.init.zeros_(module.rotation.weight)
    nn.init.zeros_(module.rotation.bias)
    batch = {"samples": torch.randint(256, (6, *SHAPE), dtype=torch.uint8), "seed": 3}
    loss = module.training_step(module.on_after_batch_transfer(batch, 0), 0)["loss"]
    assert loss.item() == pytest.approx(math.log(4), rel=1e-12)


def test_images_are_plain_but_for_their_rotation() -> None:
    module = RotPred(CONFIG, tiny_task()).build()
    samples = torch.randint(256, (32, *SHAPE), dtype=torch.uint8)
    images, turns = module.on_after_batch_transfer({"samples": samples, "seed": 3}, 0)
    for sample, image, turn in zip(samples, images, turns.tolist(), strict=True):
        plain = sample.double() / 255
        torch.testing.assert_close(image, plain.rot90(turn, dims=(1, 2)), rtol=0, atol=0)
    assert set(turns.tolist()) == {0, 1, 2, 3}
    again = module.on_after_batch_transfer({"samples": samples, "seed": 3}, 0)
    assert torch.equal(again[1], turns)


@pytest.mark.parametrize("shape", [(64,), (1, 8, 9)])
def test_what_cannot_be_rotated_is_refused(shape: tuple[int, ...]) -> None:
    task = replace(tiny_task(), shape=shape)
    with pytest.raises(ConfigError, match=r"method=RotPred: samples of shape"):
        RotPred(CONFIG, task).build()


@pytest.mark.parametrize("kind", [RotPred, SpecLoss])
def test_only_the_declared_networks_cross_and_clients_keep_nothing(kind, ran: Federated) -> None:
    federated = ran if kind is RotPred else federate(tiny_workload(SpecLoss.Config(**SMALL)))
    slots = {"encoder", "projector"} | ({"rotation"} if kind is RotPred else set())
    for task in federated.spy.tasks:
        assert set(task.slots) == set(task.outcome.up) == slots
        assert not task.outcome.gathered
        assert not task.outcome.peer_messages
        assert set(task.outcome.metrics) == {"loss"}
        assert task.outcome.state is None


def test_the_defaults_are_those_of_orchestras_baselines() -> None:
    for config in (RotPred.Config(), SpecLoss.Config()):
        assert (config.optimizer, config.learning_rate, config.weight_decay) == ("sgd", 0.03, 1e-4)
        assert (config.rounds, config.epochs, config.batch_size) == (100, 10, 256)
        assert (config.hidden, config.projection) == (512, 512)
    assert SpecLoss.Config().bound is None


def test_two_rounds_are_those_of_a_plain_loop(ran: Federated) -> None:
    workload = tiny_workload(CONFIG)
    projector = nn.Sequential(
        nn.Linear(6, 7, bias=False),
        nn.BatchNorm1d(7),
        nn.ReLU(),
        nn.Linear(7, 5, bias=False),
        nn.BatchNorm1d(5, affine=False),
    )
    parts = (TinyEncoder().build(SHAPE), projector, nn.Linear(5, 4))
    places = {
        "encoder": "online.encoder.",
        "projector": "online.projector.",
        "rotation": "rotation.",
    }
    global_model = nn.ModuleDict(dict(zip(places, parts, strict=True))).double()
    for part, prefix in places.items():
        given = {n.removeprefix(prefix): t for n, t in ran.start.slots[part].items()}
        global_model[part].load_state_dict(given, strict=False)
    for number in (1, 2):
        clients = []
        for client in range(len(SIZES)):
            net = copy.deepcopy(global_model).train()
            velocity = [torch.zeros_like(p) for p in net.parameters()]
            data = ClientData(samples=workload.samples["train"], rows=workload.parts[client])
            seed = derive_seed(5, "client", number, 0, client)
            source = SeededBatches(data, Plan(batch_size=8, epochs=2), seed)
            for batch in (batch for _ in range(2) for batch in source):
                draw = torch.Generator().manual_seed(derive_seed(batch["seed"], "rotation"))
                turns = torch.randint(4, (len(batch["samples"]),), generator=draw)
                plain = batch["samples"].double() / 255
                images = [x.rot90(int(t), (1, 2)) for x, t in zip(plain, turns, strict=True)]
                logits = net["rotation"](net["projector"](net["encoder"](torch.stack(images))))
                loss = functional.cross_entropy(logits, turns)
                gradients = torch.autograd.grad(loss, list(net.parameters()))
                with torch.no_grad():
                    for v, p, g in zip(velocity, net.parameters(), gradients, strict=True):
                        v.mul_(VELOCITY).add_(g + DECAY * p)
                        p.sub_(RATE * v)
            clients.append(net.state_dict())
        for key, value in global_model.state_dict().items():
            if value.is_floating_point():
                shares = [n / sum(SIZES) * s[key] for n, s in zip(SIZES, clients, strict=True)]
                value.copy_(sum(shares))
    for part, prefix in places.items():
        for name, found in ran.state.server.slots[part].items():
            wanted = global_model[part].state_dict()[name.removeprefix(prefix)]
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)
