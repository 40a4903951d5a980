"""Orchestra against algorithms 1 and 2 written down once more, in plain PyTorch and slow loops."""

import copy

import pytest
import torch
from torch import Tensor, nn

from coterie.contract import Plan
from coterie.contract.client import ClientData
from coterie.contract.seeds import derive_seed, seeded
from coterie.datamodules.augmentations import DigitsAugmentation
from coterie.execution.batches import SeededBatches
from coterie.modules.orchestra import Orchestra
from coterie.modules.orchestra_model import OrchestraModel
from coterie.networks.views import two_views
from tests.builders.federation import SHAPE, SIZES, federate, tiny_task, tiny_workload

EPOCHS, BATCH, RATE, SGD, DECAY, EMA, TAU = 2, 8, 0.05, 0.8, 0.01, 0.7, 0.2
L, G, MEMORY, STEPS = 2, 4, 10, 15
CONFIG = Orchestra.Config(
    projection=5,
    hidden=7,
    batch_size=BATCH,
    epochs=EPOCHS,
    rounds=1,
    participation=1.0,
    learning_rate=RATE,
    sgd_momentum=SGD,
    weight_decay=DECAY,
    momentum=EMA,
    temperature=TAU,
    local_clusters=L,
    global_clusters=G,
    memory=MEMORY,
    global_steps=STEPS,
)


class World:
    """What the server has."""

    def __init__(self) -> None:
        with seeded(derive_seed(5, "init")):
            start = OrchestraModel(CONFIG, tiny_task())
        self.online, self.target, self.head = start.online, start.target, start.rotation
        self.centroids = start.centroids.clone()


def unit(x: Tensor) -> Tensor:
    return torch.stack([row / row.norm() for row in x])


def softmax(scores: Tensor) -> Tensor:
    return scores.exp() / scores.exp().sum()


def transport(scores: Tensor) -> Tensor:
    """Sinkhorn and Knopp's iteration, clusters first."""
    plan = torch.stack([softmax(row / 0.04) for row in scores])
    for _ in range(10):
        for k in range(plan.shape[1]):
            plan[:, k] /= plan[:, k].sum()
        for i in range(len(plan)):
            plan[i] /= plan[i].sum()
    return plan


def halves(plan: Tensor) -> Tensor:
    """Two clusters of equal size ±1 with the most mass: sort by what a sample prefers."""
    order = (plan[:, 0] - plan[:, 1]).argsort(descending=True)
    n, best, found = len(plan), -1.0, torch.ones(len(plan), dtype=torch.int64)
    for size in {n // 2, n - n // 2}:
        clusters = torch.ones(n, dtype=torch.int64)
        clusters[order[:size]] = 0
        mass = sum(float(plan[i, clusters[i]]) for i in range(n))
        if mass > best:
            best, found = mass, clusters
    return found


def cluster_locally(z: Tensor, seed: int) -> Tensor:
    """Line 18 of algorithm 1."""
    draw = torch.Generator().manual_seed(seed)
    centroids = z[torch.randperm(len(z), generator=draw)[:L]]
    for _ in range(5):
        clusters = halves(transport(z @ centroids.T))
        centroids = unit(torch.stack([z[clusters == k].mean(dim=0) for k in range(L)]))
    return centroids


def cluster_globally(points: Tensor, start: Tensor) -> Tensor:
    """Line 8 of algorithm 2, after Genevay et al."""
    centroids = nn.Parameter(unit(start))  # the first rows were drawn in float32
    sgd = torch.optim.SGD([centroids], lr=0.01, momentum=0.9)
    for _ in range(STEPS):
        plan = transport((points @ centroids.T).detach())
        logs = torch.stack([softmax(row / TAU).log() for row in points @ centroids.T])
        sgd.zero_grad()
        (-(plan * logs).sum(dim=1).mean()).backward()
        sgd.step()
        with torch.no_grad():
            centroids.copy_(unit(centroids))
    return centroids.detach()


def turned_views(batch: dict) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    augment = DigitsAugmentation().build(SHAPE)
    a, b = two_views(augment, batch["samples"], batch["seed"], torch.float64)
    draw = torch.Generator().manual_seed(derive_seed(batch["seed"], "rotation"))
    turns = torch.randint(4, (len(a),), generator=draw)
    turned = torch.stack([x.rot90(int(k), dims=(1, 2)) for x, k in zip(a, turns, strict=True)])
    return a, b, turned, turns


def train(global_model: World, batches: list, memory: list[tuple[int, Tensor]]) -> World:
    """Lines 2 to 17 of algorithm 1; the memory takes the target's projections."""
    local = copy.deepcopy(global_model)
    sgd = torch.optim.SGD(
        [*local.online.parameters(), *local.head.parameters()],
        lr=RATE,
        momentum=SGD,
        weight_decay=DECAY,
    )
    local.online.train()
    local.target.train()
    for batch in batches:
        a, b, turned, turns = turned_views(batch)
        with torch.no_grad():
            z = unit(local.target(a))
            p = [softmax(row @ global_model.centroids.T / TAU) for row in z]
        q = [softmax(row @ global_model.centroids.T / TAU) for row in unit(local.online(b))]
        clusters = sum(-(pi * qi.log()).sum() for pi, qi in zip(p, q, strict=True)) / len(p)
        guesses = local.head(local.online(turned))
        rotations = sum(-softmax(g)[k].log() for g, k in zip(guesses, turns, strict=True))
        sgd.zero_grad()
        (clusters + rotations / len(turns)).backward()
        sgd.step()
        with torch.no_grad():
            follow, lead = local.target.parameters(), local.online.parameters()
            for t, o in zip(follow, lead, strict=True):
                t.copy_(EMA * t + (1 - EMA) * o)
        memory += zip(batch["positions"].tolist(), z, strict=True)
    return local


def recollect(memory: list[tuple[int, Tensor]]) -> Tensor:
    """The last projections, newest first, of each sample the newest."""
    seen: dict[int, Tensor] = {}
    for position, z in reversed(memory[-MEMORY:]):
        seen.setdefault(position, z)
    return torch.stack(list(seen.values()))


def first_phase(workload, global_model: World) -> Tensor:
    """Every client's centroids under the initial target network."""
    found = []
    for client in range(len(SIZES)):
        seed = derive_seed(5, "client", 1, 0, client)
        data = ClientData(samples=workload.samples["train"], rows=workload.parts[client])
        draw = torch.Generator().manual_seed(derive_seed(seed, "order"))
        order, memory = torch.randperm(len(data), generator=draw)[:MEMORY].tolist(), []
        target = copy.deepcopy(global_model.target).train()
        for step, start in enumerate(range(0, len(order), BATCH)):
            positions = order[start : start + BATCH]
            if len(positions) >= 2:
                samples = data.take(torch.tensor(positions).numpy())
                batch = {"samples": samples, "seed": derive_seed(seed, step)}
                with torch.no_grad():
                    memory += zip(positions, unit(target(turned_views(batch)[0])), strict=True)
        found.append(cluster_locally(recollect(memory), derive_seed(seed, "clusters")))
    return torch.cat(found)


def average(global_model: nn.Module, clients: list[nn.Module]) -> None:
    states = [client.state_dict() for client in clients]
    for name, value in global_model.state_dict().items():
        if value.is_floating_point():
            shares = [n / sum(SIZES) * s[name] for n, s in zip(SIZES, states, strict=True)]
            value.copy_(sum(shares))


def reference(workload) -> World:
    global_model = World()
    global_model.centroids = cluster_globally(
        first_phase(workload, global_model), global_model.centroids
    )
    locals_, points = [], []
    for client in range(len(SIZES)):
        seed, memory = derive_seed(5, "client", 1, 1, client), []
        data = ClientData(samples=workload.samples["train"], rows=workload.parts[client])
        plan = SeededBatches(data, Plan(batch_size=BATCH, epochs=EPOCHS), seed)
        batches = [batch for _ in range(EPOCHS) for batch in plan]
        locals_.append(train(global_model, batches, memory))
        points.append(cluster_locally(recollect(memory), derive_seed(seed, "clusters")))
    for part in ("online", "target", "head"):
        average(getattr(global_model, part), [getattr(local, part) for local in locals_])
    global_model.centroids = cluster_globally(torch.cat(points), global_model.centroids)
    return global_model


@pytest.fixture(scope="module")
def global_model() -> World:
    return reference(tiny_workload(CONFIG))


@pytest.mark.parametrize("executor", ["bare", "lightning"])
def test_the_first_phase_and_a_round_are_those_of_the_algorithms(
    executor: str, global_model: World
) -> None:
    ran = federate(tiny_workload(CONFIG, executor=executor))
    slots = ran.state.server.slots
    parts = {
        "online": global_model.online,
        "target": global_model.target,
        "rotation": global_model.head,
    }
    for slot, module in parts.items():
        expected = module.state_dict()
        assert len(slots[slot]) == sum("num_batches" not in name for name in expected)
        for name, value in slots[slot].items():
            wanted = expected[name.removeprefix(f"{slot}.")]
            torch.testing.assert_close(value, wanted, rtol=0, atol=1e-10)
            assert not torch.equal(value, ran.start.slots[slot][name]), name
    found = slots["centroids"]["centroids"]
    torch.testing.assert_close(found, global_model.centroids, rtol=0, atol=1e-10)
