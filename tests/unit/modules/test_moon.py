"""MOON: its identities, what a client keeps and sends, and two rounds against a plain loop."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from coterie.contract import Plan
from coterie.contract.client import ClientData
from coterie.contract.seeds import derive_seed
from coterie.datamodules.augmentations import NoAugmentation
from coterie.errors import ContractError
from coterie.execution.batches import SeededBatches
from coterie.losses.cosine import model_contrast
from coterie.modules.moon import MOON
from tests.builders.federation import (
    SHAPE,
    SIZES,
    Federated,
    TinyEncoder,
    federate,
    same_bits,
    tiny_workload,
)
from tests.builders.slow_losses import cosine

RATE, VELOCITY, DECAY, MU, TAU = 0.2, 0.6, 0.01, 2.0, 0.4
COMMON = {"rounds": 2, "epochs": 2, "batch_size": 8, "learning_rate": RATE}
SGD = {"momentum": VELOCITY, "weight_decay": DECAY}
CONFIG = MOON.Config(**COMMON, **SGD, contrast_weight=MU, temperature=TAU, hidden=7, projection=5)


@pytest.fixture(scope="module")
def workload():
    given = tiny_workload(CONFIG, needs_labels=True)
    return replace(given, task=replace(given.task, augmentation=NoAugmentation()))


@pytest.fixture(scope="module")
def ran(workload) -> Federated:
    return federate(workload)


def rows(count: int = 6, seed: int = 0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(3, count, 4, dtype=torch.float64, generator=generator))


def test_the_loss_is_the_cross_entropy_of_two_cosines() -> None:
    z, near, far = rows()
    terms = []
    for a, b, c in zip(z, near, far, strict=True):
        good, bad = (math.exp(cosine(a, other) / 0.3) for other in (b, c))
        terms.append(-math.log(good / (good + bad)))
    found = model_contrast(z, near, far, 0.3).item()
    assert found == pytest.approx(sum(terms) / len(terms), rel=1e-12)


def test_of_equal_models_it_is_log_2_without_a_gradient() -> None:
    z, near, _ = rows()
    z.requires_grad_()
    loss = model_contrast(z, near, near, 0.5)
    assert loss.item() == pytest.approx(math.log(2), rel=1e-15)
    (gradient,) = torch.autograd.grad(loss, z)
    assert not gradient.any()


def test_other_shapes_are_refused() -> None:
    z, near, far = rows()
    with pytest.raises(ContractError, match="two matrices of one shape"):
        model_contrast(z, near, far[:, :2], 0.5)


def test_a_first_task_has_log_2_and_no_later_one(ran: Federated) -> None:
    for task in ran.spy.tasks:
        first = task.phase.round == 1
        assert (task.client.state is None) is first
        contrast = task.outcome.metrics["contrast"]
        assert (contrast == pytest.approx(math.log(2), rel=1e-12)) is first


def test_a_client_sends_its_model_and_keeps_it_without_the_classifier(ran: Federated) -> None:
    for task in ran.spy.tasks:
        assert set(task.outcome.up) == set(task.slots) == {"encoder", "projector", "classifier"}
        assert not task.outcome.gathered
        assert not task.outcome.peer_messages
        assert set(task.outcome.metrics) == {"loss", "supervised", "contrast"}
        up = task.outcome.up
        sent = {n: t for part in ("encoder", "projector") for n, t in up[part].tensors.items()}
        assert same_bits({f"previous.{n}": t for n, t in sent.items()}, task.outcome.state)


def loop(workload, global_model: nn.ModuleDict) -> None:
    """Algorithm 1, by hand; BatchNorm's statistics are averaged with the rest."""
    previous: dict[int, nn.ModuleDict] = {}
    for number in range(1, 3):
        clients = []
        frozen = copy.deepcopy(global_model).eval()
        for client in range(len(SIZES)):
            net = copy.deepcopy(global_model).train()
            last = previous.get(client, frozen)
            velocity = [torch.zeros_like(p) for p in net.parameters()]
            for images, labels in batches(workload, number, client):
                z, near, far = (m["projector"](m["encoder"](images)) for m in (net, frozen, last))
                terms = []
                for a, b, c in zip(z, near.detach(), far.detach(), strict=True):
                    good, bad = (functional.cosine_similarity(a, o, dim=0) / TAU for o in (b, c))
                    terms.append(-torch.log(good.exp() / (good.exp() + bad.exp())))
                logits = net["classifier"](z)
                loss = functional.cross_entropy(logits, labels) + MU * sum(terms) / len(terms)
                gradients = torch.autograd.grad(loss, list(net.parameters()))
                with torch.no_grad():
                    for v, p, g in zip(velocity, net.parameters(), gradients, strict=True):
                        v.mul_(VELOCITY).add_(g + DECAY * p)
                        p.sub_(RATE * v)
            previous[client] = copy.deepcopy(net).eval()
            clients.append(net.state_dict())
        for key, value in global_model.state_dict().items():
            if value.is_floating_point():
                shares = [n / sum(SIZES) * s[key] for n, s in zip(SIZES, clients, strict=True)]
                value.copy_(sum(shares))


def batches(workload, number: int, client: int):
    rows, images = workload.parts[client], workload.samples["train"]
    data = ClientData(samples=images, rows=rows, labels=workload.labels)
    seed = derive_seed(5, "client", number, 0, client)
    source = SeededBatches(data, Plan(batch_size=8, epochs=2), seed, with_labels=True)
    for batch in (batch for _ in range(2) for batch in source):
        yield (batch["samples"].float() / 255).double(), batch["labels"]


def test_two_rounds_are_those_of_a_plain_loop(workload, ran: Federated) -> None:
    places = {"encoder": "encoder.", "projector": "projector.layers.", "classifier": "classifier."}
    projector = nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 5))
    parts = (TinyEncoder().build(SHAPE), projector, nn.Linear(5, 3))
    global_model = nn.ModuleDict(dict(zip(places, parts, strict=True))).double()
    for part, prefix in places.items():
        given = {n.removeprefix(prefix): t for n, t in ran.start.slots[part].items()}
        global_model[part].load_state_dict(given, strict=False)
    loop(workload, global_model)
    for part, prefix in places.items():
        for name, found in ran.state.server.slots[part].items():
            wanted = global_model[part].state_dict()[name.removeprefix(prefix)]
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
