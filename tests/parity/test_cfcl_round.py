"""CF-CL against its algorithm written down once more: step by step, device by device, in loops."""

import copy

import pytest
import torch
from torch import Tensor, nn

from coterie.clustering.kmeans import kmeans
from coterie.contract import Plan
from coterie.contract.client import ClientData
from coterie.contract.seeds import derive_seed, seeded
from coterie.datamodules.augmentations import DigitsAugmentation
from coterie.execution.batches import SeededBatches
from coterie.modules.cfcl_model import TripletModel
from coterie.modules.cfcl_timeline import timeline
from coterie.networks.views import seeded_view
from tests.builders import slow_importance as slow
from tests.builders.cfcl import ran, short
from tests.builders.federation import SHAPE, SIZES, Federated, tiny_task, tiny_workload

TOTAL, AGGREGATE, PULL, BATCH, RATE, MARGIN, LAMBDA = 7, 3, 2, 8, 0.01, 1.0, 0.7
BUDGET, RESERVE, CANDIDATES, CLUSTERS, WEIGHT, RHO_ZETA, SCALE = 2, 4, 9, 3, 0.6, 0.8, 1.5
CHANGES = {
    "temperature": LAMBDA,
    "regulariser": WEIGHT,
    "rho_zeta": RHO_ZETA,
    "margin_scale": SCALE,
    "approx_size": CANDIDATES,
}
CLIENTS = range(len(SIZES))


def augment(samples: Tensor, seed: int) -> Tensor:
    view = DigitsAugmentation().build(SHAPE)
    return seeded_view(view, samples.float() / 255.0, seed).double()


class Reference:
    """All devices, moved on one time step after the other; every device is every one's neighbour.

    `seeds` says what a device draws from in a push or a pull at a time step.
    """

    def __init__(self, exchange: str, done: Federated) -> None:
        self.embedded = exchange == "implicit"
        self.data = [
            ClientData(samples=tiny_workload(short()).samples["train"], rows=rows)
            for rows in done.backend.worker.parts
        ]
        self.seeds = {}
        for task in done.spy.tasks:
            event = timeline(done.config)[task.phase.round - 1][task.phase.step]
            self.seeds[event.kind, event.step, task.client.id] = task.client.seed
        self.batch_seed = int(done.start.slots["setup"]["seed"])
        with seeded(derive_seed(5, "init")):
            self.global_model = TripletModel(short(), tiny_task()).encoder
        self.nets = [copy.deepcopy(self.global_model) for _ in CLIENTS]
        self.adams = [torch.optim.Adam(net.parameters(), lr=RATE) for net in self.nets]
        self.exposure = [0 for _ in CLIENTS]
        self.pulled: list[list[Tensor]] = [[] for _ in CLIENTS]
        self.margins = [0.0 for _ in CLIENTS]
        self.reserves = [self.choose_reserve(i) for i in CLIENTS]

    def stream(self, kind: str, t: int, i: int, *purpose: object) -> int:
        return derive_seed(self.seeds[kind, t, i], "exchange", *purpose)

    def embed(self, samples: Tensor) -> Tensor:
        network = copy.deepcopy(self.global_model).eval()
        unit = samples.double() / 255.0 if samples.dtype == torch.uint8 else samples.double()
        return torch.stack([network(row[None])[0] for row in unit]).detach()

    def choose_reserve(self, i: int) -> Tensor:
        points = self.data[i].take().reshape(SIZES[i], -1) / 255.0
        seed = self.stream("push", 0, i, "reserve")
        chosen: list[int] = []
        for centre in kmeans(points, RESERVE, seed=seed, restarts=1).centroids:
            left = [n for n in range(SIZES[i]) if n not in chosen]
            chosen.append(min(left, key=lambda n: slow.squared(points[n], centre)))
        return self.data[i].take(torch.tensor(chosen).numpy())

    def run(self) -> nn.Module:
        for t in range(1, TOTAL + 1):
            if t % AGGREGATE == 0:
                self.aggregate()
            if t % PULL == 0:
                self.pull(t)
            for i in CLIENTS:
                self.step(i, t)
        self.aggregate()
        return self.global_model

    def pull(self, t: int) -> None:
        self.pulled = [[] for _ in CLIENTS]
        for j in CLIENTS:
            draw = torch.Generator().manual_seed(self.stream("pull", t, j, "candidates"))
            chosen = torch.randperm(SIZES[j], generator=draw)[:CANDIDATES]
            samples = self.data[j].take(chosen.numpy())
            z = self.embed(samples)
            if self.embedded:
                seed = self.stream("pull", t, j, "clusters")
                own = kmeans(z, CLUSTERS, seed=seed, restarts=1).assignments.tolist()
                self.margins[j] = SCALE * slow.radius(z, own)
            for i in (i for i in CLIENTS if i != j):
                p = self.implicit(t, i, j, z, own) if self.embedded else self.explicit(t, i, j, z)
                draw = torch.Generator().manual_seed(self.stream("pull", t, j, "draw", i))
                count = min(BUDGET, sum(x > 0 for x in p))
                weights = torch.tensor(p, dtype=torch.float64)
                sent = torch.multinomial(weights, count, generator=draw)
                self.pulled[i].append(z[sent] if self.embedded else samples[sent])

    def explicit(self, t: int, i: int, j: int, z: Tensor) -> list[float]:
        """Algorithm 2."""
        anchors = self.embed(self.reserves[i])
        views = augment(self.reserves[i], derive_seed(self.seeds["pull", t, j], "views", i))
        positives = self.embed(views)
        seed = self.stream("pull", t, j, "clusters", i)
        labels = kmeans(torch.cat([z, anchors]), CLUSTERS, seed=seed, restarts=1).assignments
        own, foreign = labels[: len(z)].tolist(), labels[len(z) :].tolist()
        return slow.explicit(z, own, anchors, positives, foreign, MARGIN, LAMBDA)[1]

    def implicit(self, t: int, i: int, j: int, z: Tensor, own: list[int]) -> list[float]:
        """Algorithm 3."""
        reserve = self.embed(self.reserves[i])
        seed = self.stream("pull", t, j, "reserve clusters", i)
        foreign = kmeans(reserve, RESERVE // 2, seed=seed, restarts=1).assignments.tolist()
        return slow.implicit(z, own, reserve, foreign, "intent", 0.0, None)[2]

    def step(self, i: int, t: int) -> None:
        """One gradient step on one batch of triplets."""
        own, foreign = self.data[i].take(), [] if self.embedded else self.pulled[i]
        samples = torch.cat([own, *foreign])
        data = ClientData(samples=samples.numpy(), rows=torch.arange(len(samples)).numpy())
        seed = derive_seed(self.batch_seed, i)
        plan = Plan(batch_size=BATCH, steps=1, first_step=t - 1)
        (batch,) = list(SeededBatches(data, plan, seed))
        draw = torch.Generator().manual_seed(derive_seed(batch["seed"], "negatives"))
        others = torch.randint(len(samples) - 1, (len(batch["positions"]),), generator=draw)
        negatives = [
            [n for n in range(len(samples)) if n != at][other]
            for at, other in zip(batch["positions"], others, strict=True)
        ]
        views = augment(batch["samples"], derive_seed(batch["seed"], "view", 0))
        net, n = self.nets[i].train(), len(batch["samples"])
        parts = batch["samples"].double() / 255.0, views, samples[negatives].double() / 255.0
        every = net(torch.cat(parts))
        a, p, o = every[:n], every[n : 2 * n], every[2 * n :]
        loss = sum(hinge(*row, MARGIN) for row in zip(a, p, o, strict=True)) / n
        if self.embedded and self.pulled[i]:
            z = torch.cat(self.pulled[i])
            extra = sum(hinge(a[k], p[k], q, self.margins[i]) for k in range(n) for q in z)
            loss = loss + slow.weight(t, TOTAL, AGGREGATE, WEIGHT, RHO_ZETA) * extra / n / len(z)
        self.adams[i].zero_grad()
        loss.backward()
        self.adams[i].step()
        self.exposure[i] += len(samples)

    def aggregate(self) -> None:
        """Eq. (5); then all devices take the mean."""
        states = [net.state_dict() for net in self.nets]
        mean = self.global_model.state_dict()
        for name, value in mean.items():
            if value.is_floating_point():
                total = sum(w * s[name] for w, s in zip(self.exposure, states, strict=True))
                value.copy_(total / sum(self.exposure))
        for net in self.nets:
            net.load_state_dict(mean)
        self.exposure = [0 for _ in CLIENTS]


def hinge(a: Tensor, p: Tensor, n: Tensor, margin: float) -> Tensor:
    return ((a - p).square().sum() - (a - n).square().sum() + margin).clamp_min(0)


@pytest.mark.parametrize("executor", ["bare", "lightning"])
@pytest.mark.parametrize("exchange", ["explicit", "implicit"])
def test_a_whole_run_is_that_of_the_algorithm(exchange: str, executor: str) -> None:
    done = ran({"executor": executor}, exchange=exchange, **CHANGES)
    wanted = Reference(exchange, done).run().state_dict()
    found = done.state.server.slots["encoder"]
    assert len(found) == sum("num_batches" not in name for name in wanted)
    for name, value in found.items():
        expected = wanted[name.removeprefix("encoder.")]
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-9)
        assert not torch.equal(value, done.start.slots["encoder"][name]), name
