"""FedSimCLR, SpecLoss, FedBYOL, FedSimSiam, FedU and FedEMA against their formulas, in loops."""

import copy

import pytest
import torch
from torch import Tensor, nn

from coterie.contract import Plan
from coterie.contract.client import ClientData
from coterie.contract.seeds import derive_seed
from coterie.datamodules.augmentations import DigitsAugmentation
from coterie.execution.batches import SeededBatches
from coterie.modules.byol import FedBYOL
from coterie.modules.fedema import FedEMA
from coterie.modules.fedu import FedU
from coterie.modules.simclr import FedSimCLR
from coterie.modules.simsiam import FedSimSiam
from coterie.modules.specloss import SpecLoss
from coterie.networks.views import two_views
from tests.builders.federation import SHAPE, SIZES, TinyEncoder, federate, tiny_workload

pytestmark = pytest.mark.ci

ROUNDS, EPOCHS, BATCH, RATE, DECAY, VELOCITY, EMA, TAU = 2, 2, 8, 0.05, 0.01, 0.8, 0.7, 0.4
KINDS = {
    "simclr": FedSimCLR,
    "specloss": SpecLoss,
    "byol": FedBYOL,
    "simsiam": FedSimSiam,
    "fedu": FedU,
    "fedema": FedEMA,
}
HEADLESS = ("simclr", "specloss")
HAVE_TARGETS = ("byol", "fedu", "fedema")
PLACES = {
    "encoder": "online.encoder.",
    "projector": "online.projector.layers.",
    "predictor": "predictor.layers.",
}


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum() / (a.norm() * b.norm())


def info_nce(z_a: Tensor, z_b: Tensor) -> Tensor:
    """Each of the 2n views against all others, its partner among them."""
    every, n = [*z_a, *z_b], len(z_a)
    total = torch.zeros((), dtype=z_a.dtype)
    for i, anchor in enumerate(every):
        others = [(cosine(anchor, z) / TAU).exp() for j, z in enumerate(every) if j != i]
        partner = (cosine(anchor, every[(i + n) % (2 * n)]) / TAU).exp()
        total = total - torch.log(partner / sum(others))
    return total / (2 * n)


def spectral(z_a: Tensor, z_b: Tensor) -> Tensor:
    """Views of one sample attract each other, those of two are to be orthogonal."""
    n, total = len(z_a), torch.zeros((), dtype=z_a.dtype)
    for i, a in enumerate(z_a):
        for j, b in enumerate(z_b):
            same = -2 * cosine(a, b) / n
            total = total + (same if i == j else cosine(a, b) ** 2 / (n * (n - 1)))
    return total


def mean_cosine(p: Tensor, z: Tensor) -> Tensor:
    return sum(cosine(a, b) for a, b in zip(p, z.detach(), strict=True)) / len(p)


def networks(name: str) -> nn.ModuleDict:
    """Encoder, projector and, but for SimCLR and SpecLoss, predictor."""
    first, last = nn.Linear(6, 7, bias=name == "simclr"), nn.Linear(7, 5)
    norm = () if name == "simclr" else (nn.BatchNorm1d(7),)
    output = (nn.BatchNorm1d(5, affine=False),) if name == "simsiam" else ()
    parts = {
        "encoder": TinyEncoder().build(SHAPE),
        "projector": nn.Sequential(first, *norm, nn.ReLU(), last, *output),
    }
    if name not in HEADLESS:
        layers = [nn.Linear(5, 3, bias=False), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 5)]
        parts["predictor"] = nn.Sequential(*layers)
    return nn.ModuleDict(parts).double()


def step_loss(name: str, net: nn.ModuleDict, target: nn.ModuleDict, a: Tensor, b: Tensor) -> Tensor:
    z_a, z_b = (net["projector"](net["encoder"](view)) for view in (a, b))
    if name in HEADLESS:
        return info_nce(z_a, z_b) if name == "simclr" else spectral(z_a, z_b)
    p_a, p_b = net["predictor"](z_a), net["predictor"](z_b)
    if name == "simsiam":
        return -0.5 * (mean_cosine(p_a, z_b) + mean_cosine(p_b, z_a))
    t_a, t_b = (target["projector"](target["encoder"](view)) for view in (a, b))
    return (2 - 2 * mean_cosine(p_a, t_b)) + (2 - 2 * mean_cosine(p_b, t_a))


def local_training(name: str, net: nn.ModuleDict, target: nn.ModuleDict, batches: list) -> None:
    """SGD with momentum and weight decay by hand; the target's EMA after each step."""
    net.train()
    target.train()
    velocity = [torch.zeros_like(p) for p in net.parameters()]
    augment = DigitsAugmentation().build(SHAPE)
    for batch in batches:
        a, b = two_views(augment, batch["samples"], batch["seed"], torch.float64)
        gradients = torch.autograd.grad(step_loss(name, net, target, a, b), list(net.parameters()))
        with torch.no_grad():
            for v, p, g in zip(velocity, net.parameters(), gradients, strict=True):
                v.mul_(VELOCITY).add_(g + DECAY * p)
                p.sub_(RATE * v)
            for part in ("encoder", "projector"):
                pairs = zip(target[part].parameters(), net[part].parameters(), strict=True)
                for t, o in pairs:
                    t.copy_(EMA * t + (1 - EMA) * o)


def batches_of(workload, number: int, client: int) -> list:
    data = ClientData(samples=workload.samples["train"], rows=workload.parts[client])
    seed = derive_seed(5, "client", number, 0, client)
    batches = SeededBatches(data, Plan(batch_size=BATCH, epochs=EPOCHS), seed)
    return [batch for _ in range(EPOCHS) for batch in batches]


@torch.no_grad()
def moved(net: nn.ModuleDict, before: nn.ModuleDict) -> float:
    """The mean distance of the encoder's two weight matrices."""
    pairs = zip(net["encoder"].parameters(), before["encoder"].parameters(), strict=True)
    distances = [float((a - b).square().sum().sqrt()) for a, b in pairs if a.ndim == 2]
    assert len(distances) == 2
    return sum(distances) / 2


def blended(net: nn.ModuleDict, own: nn.ModuleDict, share: float) -> None:
    with torch.no_grad():
        for p, q in zip(net.parameters(), own.parameters(), strict=True):
            p.copy_(share * q + (1 - share) * p)


def reference(name: str, workload, global_model: nn.ModuleDict, option: float | None) -> dict:
    """The rounds; each client's target network, and the predictor or model that it keeps.

    `option` is FedU's threshold; for FedEMA it is λ, and None finds λ in each first task.
    """
    targets, predictors, models, scales, ema = {}, {}, {}, {}, name == "fedema"
    for number in range(1, ROUNDS + 1):
        clients = []
        for client in range(len(SIZES)):
            net = copy.deepcopy(global_model)
            if client in predictors:
                net["predictor"] = copy.deepcopy(predictors[client])
            if client in models:
                blended(net, *models[client])
            target, before = targets.get(client) or copy.deepcopy(global_model), copy.deepcopy(net)
            local_training(name, net, target, batches_of(workload, number, client))
            clients.append(net)
            targets[client] = target
            if ema:
                far = moved(net, before)
                scale = scales.setdefault(client, TAU / far if option is None else option)
                models[client] = net, min(1.0, scale * far)
            elif option is not None and moved(net, before) >= option:
                predictors[client] = net["predictor"]
            else:
                predictors.pop(client, None)
        states = [net.state_dict() for net in clients]
        for key, value in global_model.state_dict().items():
            if value.is_floating_point():
                shares = [n / sum(SIZES) * s[key] for n, s in zip(SIZES, states, strict=True)]
                value.copy_(sum(shares))
    return targets


def compare(found: dict[str, Tensor], module: nn.Module, prefix: str) -> None:
    expected = {k: v for k, v in module.state_dict().items() if "num_batches" not in k}
    assert {prefix + key for key in expected} == set(found)
    for key, value in expected.items():
        torch.testing.assert_close(found[prefix + key], value, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("simclr", None),
        ("specloss", None),
        ("simsiam", 0.0),
        ("byol", None),
        ("byol", 0.0),
        ("fedu", 0.4),
        ("fedema", 0.8),
        ("fedema", None),
    ],
)
def test_two_rounds_are_those_of_the_formulas(name: str, option: float | None) -> None:
    heads = {} if name in HEADLESS else {"bottleneck": 3}
    heads |= {"temperature": TAU} if name == "simclr" else {}
    if name == "fedema":
        heads |= {"scale": option, "autoscale": TAU}
    elif name not in HEADLESS:
        heads |= {"predictor_threshold": option}
    heads |= {"momentum": EMA} if name in HAVE_TARGETS else {}
    config = KINDS[name].Config(
        hidden=7,
        projection=5,
        batch_size=BATCH,
        epochs=EPOCHS,
        rounds=ROUNDS,
        learning_rate=RATE,
        weight_decay=DECAY,
        sgd_momentum=VELOCITY,
        **heads,
    )
    workload = tiny_workload(config)
    ran = federate(workload)
    global_model = networks(name)
    for part, network in global_model.items():
        start = {k.removeprefix(PLACES[part]): v for k, v in ran.start.slots[part].items()}
        network.load_state_dict(start, strict=False)
    targets = reference(name, workload, global_model, option)
    for part, network in global_model.items():
        compare(ran.state.server.slots[part], network, PLACES[part])
    for client, kept in ran.kept.items():
        mine = {k: v for k, v in kept.items() if k.startswith("target.encoder.")}
        assert bool(mine) is (name in HAVE_TARGETS)
        if mine:
            compare(mine, targets[client]["encoder"], "target.encoder.")
