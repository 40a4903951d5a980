"""FedCA and FedX: identities, messages, refusals, and two rounds against a plain loop."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from coterie.contract import Plan
from coterie.contract.client import ClientData
from coterie.contract.seeds import derive_seed
from coterie.datamodules.augmentations import DigitsAugmentation
from coterie.errors import ConfigError
from coterie.execution.batches import SeededBatches
from coterie.modules.fedca import FedCA
from coterie.modules.fedx import FedX
from coterie.modules.simclr import FedSimCLR
from coterie.networks.views import seeded_view, two_views
from tests.builders.federation import (
    SHAPE,
    SIZES,
    Federated,
    TinyEncoder,
    federate,
    same_bits,
    tiny_task,
    tiny_workload,
)

RATE, VELOCITY, DECAY, TAU, TARGET, BETA = 0.05, 0.6, 0.01, 0.4, 0.3, 0.2
SMALL = {"hidden": 7, "projection": 5, "batch_size": 8, "epochs": 2, "rounds": 2}
SGD = {"learning_rate": RATE, "weight_decay": DECAY, "sgd_momentum": VELOCITY}
CONFIGS = {
    "fedca": FedCA.Config(**SMALL, **SGD, temperature=TAU, alignment=BETA, sent=6),
    "fedx": FedX.Config(**SMALL, **SGD, temperature=TAU, target_temperature=TARGET),
}
PLACES = {
    "encoder": "online.encoder.",
    "projector": "online.projector.layers.",
    "predictor": "predictor.layers.",
}


@pytest.fixture(scope="module", params=CONFIGS)
def ran(request) -> Federated:
    return federate(tiny_workload(CONFIGS[request.param]))


def test_without_dictionary_and_alignment_fedca_is_fedsimclr_bit_for_bit() -> None:
    ours = federate(tiny_workload(FedCA.Config(**SMALL, **SGD, alignment=0.0, sent=0)))
    theirs = federate(tiny_workload(FedSimCLR.Config(**SMALL, **SGD)))
    for slot in ("encoder", "projector"):
        assert same_bits(ours.state.server.slots[slot], theirs.state.server.slots[slot])


def test_only_what_is_declared_crosses(ran: Federated) -> None:
    fedca = isinstance(ran.config, FedCA.Config)
    own = {"encoder", "projector"} | (set() if fedca else {"predictor"})
    terms = {"loss", "contrast", "alignment"} if fedca else {"loss", "contrast", "relation"}
    for task in ran.spy.tasks:
        assert set(task.outcome.up) == own
        assert set(task.slots) == own | ({"dictionary", "base"} if fedca else set())
        assert set(task.outcome.gathered) == ({"projections"} if fedca else set())
        assert not task.outcome.peer_messages
        assert task.outcome.state is None
        assert set(task.outcome.metrics) == terms


def test_a_dictionary_is_the_last_rounds_unit_projections_in_client_order() -> None:
    ran = federate(tiny_workload(CONFIGS["fedca"]))
    first, second = ran.spy.tasks[:3], ran.spy.tasks[3:]
    sent = torch.cat([task.outcome.gathered["projections"] for task in first])
    assert sent.shape == (18, 5)
    torch.testing.assert_close(sent.norm(dim=1), torch.ones(18, dtype=sent.dtype))
    assert not len(first[0].slots["dictionary"]["projections"])
    for task in second:
        assert torch.equal(task.slots["dictionary"]["projections"], sent)
        assert same_bits(task.slots["base"], first[0].slots["base"])
    base = {n.removeprefix("base."): t for n, t in first[0].slots["base"].items()}
    start = ran.start.slots["encoder"]
    assert same_bits(base, {n.removeprefix("online.encoder."): t for n, t in start.items()})


def test_projections_of_single_samples_need_consent() -> None:
    guarded = replace(tiny_task(), k_anonymity=2)
    with pytest.raises(ConfigError, match=r"forbids it; set privacy.k_anonymity=1 as well"):
        FedCA(FedCA.Config(**SMALL), guarded)
    FedCA(FedCA.Config(**SMALL, sent=0), guarded)


def unit(z: Tensor) -> Tensor:
    return z / z.norm(dim=1, keepdim=True)


def contrast(z_a: Tensor, z_b: Tensor, dictionary: Tensor) -> Tensor:
    every, n = unit(torch.cat([z_a, z_b])), len(z_a)
    total = torch.zeros((), dtype=every.dtype)
    for i, anchor in enumerate(every):
        others = [(anchor @ z / TAU).exp() for j, z in enumerate(every) if j != i]
        others += [(anchor @ w / TAU).exp() for w in dictionary]
        total = total - torch.log((anchor @ every[(i + n) % (2 * n)] / TAU).exp() / sum(others))
    return total / (2 * n)


def relation(u: Tensor, v: Tensor, others: Tensor) -> Tensor:
    near = [unit(x) @ unit(others).T for x in (u, v)]
    q = sum(functional.softmax(s / TARGET, dim=1) for s in near) / 2
    terms = [(q * (q / functional.softmax(s / TAU, dim=1)).log()).sum(dim=1).mean() for s in near]
    return sum(terms) / 2


def fedca_loss(net, frozen, views, dictionary) -> Tensor:
    h = [net["encoder"](view) for view in views[:2]]
    z = [net["projector"](x) for x in h]
    pairs = zip(h, (frozen["encoder"](view) for view in views[:2]), strict=True)
    apart = sum(((a - b.detach()) ** 2).sum(dim=1).mean() for a, b in pairs) / 2
    return contrast(*z, dictionary) + BETA * apart


def fedx_loss(net, frozen, views, _) -> Tensor:
    z_a, z_b, z_r = (net["projector"](net["encoder"](view)) for view in views)
    p_a, p_b = net["predictor"](z_a), net["predictor"](z_b)
    world_b, world_r = (frozen["projector"](frozen["encoder"](v)).detach() for v in views[1:])
    none = torch.zeros(0, 5, dtype=z_a.dtype)
    local = contrast(z_a, z_b, none) + relation(z_a, z_b, z_r)
    return local + contrast(p_a, world_b, none) + relation(p_a, p_b, world_r)


def batches(workload, number: int, client: int):
    """Two views of each batch, and one of as many others."""
    data = ClientData(samples=workload.samples["train"], rows=workload.parts[client])
    seed = derive_seed(5, "client", number, 0, client)
    source = SeededBatches(data, Plan(batch_size=8, epochs=2), seed)
    augment = DigitsAugmentation().build(SHAPE)
    for batch in (batch for _ in range(2) for batch in source):
        views = two_views(augment, batch["samples"], batch["seed"], torch.float64)
        draw = torch.Generator().manual_seed(derive_seed(batch["seed"], "others"))
        drawn = torch.randint(len(data), (len(batch["samples"]),), generator=draw)
        others = data.take(drawn.numpy()).float() / 255
        seed_of = derive_seed(batch["seed"], "view", 2)
        yield (*views, seeded_view(augment, others, seed_of).double())


def trained(net: nn.ModuleDict, frozen: nn.ModuleDict, source, loss, dictionary) -> None:
    net.train()
    velocity = [torch.zeros_like(p) for p in net.parameters()]
    for views in source:
        value = loss(net, frozen, views, dictionary)
        gradients = torch.autograd.grad(value, list(net.parameters()))
        with torch.no_grad():
            for v, p, g in zip(velocity, net.parameters(), gradients, strict=True):
                v.mul_(VELOCITY).add_(g + DECAY * p)
                p.sub_(RATE * v)


def projections(net: nn.ModuleDict, workload, number: int, client: int) -> Tensor:
    data = ClientData(samples=workload.samples["train"], rows=workload.parts[client])
    seed = derive_seed(5, "client", number, 0, client)
    draw = torch.Generator().manual_seed(derive_seed(seed, "dictionary"))
    samples = data.take(torch.randperm(len(data), generator=draw)[:6].numpy())
    net.eval()
    with torch.no_grad():
        return unit(net["projector"](net["encoder"](samples.double() / 255)))


def test_two_rounds_are_those_of_a_plain_loop(ran: Federated) -> None:
    workload, fedca = tiny_workload(ran.config), isinstance(ran.config, FedCA.Config)
    head = nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 5))
    parts = {"encoder": TinyEncoder().build(SHAPE), "projector": head}
    if not fedca:
        parts["predictor"] = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 5))
    global_model = nn.ModuleDict(parts).double()
    for part, network in global_model.items():
        start = ran.start.slots[part]
        given = {n.removeprefix(PLACES[part]): t for n, t in start.items()}
        network.load_state_dict(given, strict=False)
    base, dictionary = copy.deepcopy(global_model).eval(), torch.zeros(0, 5, dtype=torch.float64)
    for number in (1, 2):
        clients, found = [], []
        for client in range(len(SIZES)):
            net, frozen = (
                copy.deepcopy(global_model),
                copy.deepcopy(base if fedca else global_model).eval(),
            )
            loss = fedca_loss if fedca else fedx_loss
            trained(net, frozen, batches(workload, number, client), loss, dictionary)
            clients.append(net.state_dict())
            found.append(projections(net, workload, number, client))
        dictionary = torch.cat(found)
        for key, value in global_model.state_dict().items():
            if value.is_floating_point():
                shares = [n / sum(SIZES) * s[key] for n, s in zip(SIZES, clients, strict=True)]
                value.copy_(sum(shares))
    for part, network in global_model.items():
        for name, found in ran.state.server.slots[part].items():
            wanted = network.state_dict()[name.removeprefix(PLACES[part])]
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)
