"""CCFC against Algorithm 1 written down once more, in plain PyTorch and loops over pairs."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from coterie.clustering.kmeans import kmeans
from coterie.contract import Plan
from coterie.contract.client import ClientData
from coterie.contract.seeds import derive_seed, seeded
from coterie.datamodules.augmentations import DigitsAugmentation
from coterie.execution.batches import SeededBatches
from coterie.modules.ccfc import CCFC
from coterie.modules.cluster_siamese import SiameseNetwork
from coterie.networks.views import two_views
from tests.builders.federation import SHAPE, SIZES, federate, tiny_task, tiny_workload

EPOCHS, BATCH, RATE, WEIGHT, CLUSTERS = 2, 8, 3e-3, 0.3, 3
SHORT = {
    "projection": 5,
    "hidden": 7,
    "bottleneck": 4,
    "batch_size": BATCH,
    "epochs": EPOCHS,
    "learning_rate": RATE,
    "model_weight": WEIGHT,
    "restarts": 2,
    "warmup_rounds": 1,
    "rounds": 2,
}


def s(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum() / (a.norm() * b.norm())


def cluster_loss(p: Tensor, z: Tensor, labels: list[int], pairs: str) -> Tensor:
    """Eq. (1) and (2), pair by pair."""
    means = []
    for c in range(CLUSTERS):
        members = [i for i, label in enumerate(labels) if label == c]
        if len(members) < 2:
            continue
        total = torch.zeros((), dtype=p.dtype)
        for i in members:
            others = [j for j in members if j != i or pairs == "all"]
            for j in others:
                total = total - s(p[i], z[j].detach()) / len(others) / len(members)
        means.append(total)
    return sum(means) / len(means) if means else 0.0 * p.sum()


def regulariser(p: Tensor, q: Tensor) -> Tensor:
    """Eq. (5), averaged over the batch."""
    return -sum(s(p[i], q[i].detach()) for i in range(len(p))) / len(p)


def simsiam(p: Tensor, z: Tensor) -> Tensor:
    return -sum(s(p[i], z[i].detach()) for i in range(len(p))) / len(p)


def sample_loss(net: nn.Module, global_model: nn.Module, batch: dict[str, Any]) -> Tensor:
    """SCFC's loss of a batch."""
    augment = DigitsAugmentation().build(SHAPE)
    a, b = two_views(augment, batch["samples"], batch["seed"], torch.float64)
    (z_a, p_a), (z_b, p_b) = net(a), net(b)
    both = 0.5 * simsiam(p_a, z_b) + 0.5 * simsiam(p_b, z_a)
    r = 0.5 * regulariser(p_a, global_model(a)[1]) + 0.5 * regulariser(p_b, global_model(b)[1])
    return both + WEIGHT * r


def nearest(z: Tensor, centroids: Tensor, metric: str) -> int:
    """Eq. (3) of one sample."""
    if metric == "cosine":
        return max(range(CLUSTERS), key=lambda c: float(s(z, centroids[c].double())))
    return min(range(CLUSTERS), key=lambda c: float((z - centroids[c].double()).norm()))


class Reference:
    """The server and its three clients."""

    def __init__(self, workload: Any, pairs: str, metric: str, keep: bool, initial: str) -> None:
        self.pairs, self.metric, self.keep, self.initial = pairs, metric, keep, initial
        self.seed = derive_seed(5, "init")
        config = CCFC.Config(**SHORT)
        with seeded(self.seed):
            self.global_model = SiameseNetwork(config, tiny_task()).double()
        self.data = [
            ClientData(samples=workload.samples["train"], rows=rows) for rows in workload.parts
        ]
        self.centroids = torch.empty(0)
        self.nets: dict[tuple[str, int], tuple[nn.Module, torch.optim.Adam]] = {}

    def run(self) -> None:
        self.round(1, 0, "samples")
        self.mine([copy.deepcopy(self.global_model) for _ in SIZES], 2, 0)
        self.round(2, 1, "clusters")
        self.round(3, 0, "clusters")

    def round(self, number: int, step: int, stage: str) -> None:
        locals_ = [self.train(number, step, stage, client) for client in range(len(SIZES))]
        if stage == "clusters":
            self.mine(locals_, number, step)
        states = [net.state_dict() for net in locals_]
        for name, value in self.global_model.state_dict().items():
            if value.is_floating_point():
                value.copy_(
                    sum(n / sum(SIZES) * t[name] for n, t in zip(SIZES, states, strict=True))
                )

    def mine(self, nets: list[nn.Module], number: int, step: int) -> None:
        every = []
        for client, net in enumerate(nets):
            latent = torch.stack([self.latent(net, x) for x in self.data[client].take()])
            seed = derive_seed(derive_seed(5, "client", number, step, client), "kmeans")
            every.append(kmeans(latent, CLUSTERS, seed=seed, restarts=2).centroids)
        seed = derive_seed(self.seed, "kmeans", number, step)
        self.centroids = kmeans(torch.cat(every), CLUSTERS, seed=seed, restarts=2).centroids

    def latent(self, net: nn.Module, sample: Tensor) -> Tensor:
        net.eval()
        with torch.no_grad():
            z = net.encoder(sample[None].double() / 255.0)[0]
        return z / z.norm() if self.metric == "cosine" else z

    def train(self, number: int, step: int, stage: str, client: int) -> nn.Module:
        net, adam = self.net(stage, client)
        data, global_model = self.data[client], copy.deepcopy(self.global_model).eval()
        labels = (
            [
                nearest(self.latent(global_model, x), self.centroids, self.metric)
                for x in data.take()
            ]
            if (stage == "clusters")
            else []
        )
        seed = derive_seed(5, "client", number, step, client)
        if number == 1 and self.initial == "independent":
            with seeded(seed):
                own = SiameseNetwork(CCFC.Config(**SHORT), tiny_task())
            net.load_state_dict(own.state_dict())
        batches = SeededBatches(data, Plan(batch_size=BATCH, epochs=EPOCHS), seed)
        net.train()
        for batch in [batch for _ in range(EPOCHS) for batch in batches]:
            adam.zero_grad()
            if stage == "samples":
                loss = sample_loss(net, global_model, batch)
            else:
                loss = self.clusters_loss(net, global_model, batch["samples"], labels, client)
            loss.backward()
            adam.step()
        return net

    def clusters_loss(
        self, net: nn.Module, global_model: nn.Module, x: Tensor, labels: list[int], client: int
    ) -> Tensor:
        """Eq. (4), with the labels of the whole task."""
        every = self.data[client].take()
        own = [next(i for i, y in enumerate(every) if torch.equal(y, sample)) for sample in x]
        z, p = net(x.double() / 255.0)
        loss = cluster_loss(p, z, [labels[i] for i in own], self.pairs)
        return loss + WEIGHT * regulariser(p, global_model(x.double() / 255.0)[1])

    def net(self, stage: str, client: int) -> tuple[nn.Module, torch.optim.Adam]:
        """The client's network, now the global one, and its Adam, which may go on."""
        if not self.keep or (stage, client) not in self.nets:
            fresh = copy.deepcopy(self.global_model)
            self.nets[stage, client] = fresh, torch.optim.Adam(fresh.parameters(), lr=RATE)
        net, adam = self.nets[stage, client]
        net.load_state_dict(self.global_model.state_dict())
        return net, adam


@pytest.mark.parametrize(
    ("executor", "pairs", "metric", "keep", "initial"),
    [
        ("bare", "exclude_self", "euclidean", True, "common"),
        ("lightning", "all", "cosine", False, "common"),
        ("bare", "exclude_self", "cosine", True, "independent"),
    ],
)
def test_three_rounds_are_those_of_the_algorithm(
    executor: str, pairs: str, metric: str, keep: bool, initial: str
) -> None:
    config = CCFC.Config(**SHORT, pairs=pairs, metric=metric, keep_optimizer=keep, initial=initial)
    workload = tiny_workload(config, executor=executor)
    ran = federate(workload)
    reference = Reference(workload, pairs, metric, keep, initial)
    reference.run()
    slots = ran.state.server.slots
    for part in ("encoder", "predictor"):
        expected = reference.global_model.get_submodule(part).state_dict()
        names = {f"online.{part}.{n}": n for n in expected if "num_batches" not in n}
        assert set(slots[part]) == set(names)
        for name, value in slots[part].items():
            torch.testing.assert_close(
                value, expected[names[name]], rtol=0, atol=1e-8
            )  # Adam amplifies
            assert not torch.equal(value, ran.start.slots[part][name]), name
    centroids = slots["centroids"]["centroids"]
    torch.testing.assert_close(centroids, reference.centroids, rtol=0, atol=1e-5)


def test_what_adam_remembers_matters() -> None:
    def last(**changes: Any) -> Callable[..., Any]:
        ran = federate(tiny_workload(CCFC.Config(**SHORT, **changes)))
        return ran.state.server.slots["encoder"]["online.encoder.projector.0.layers.0.weight"]

    assert not torch.equal(last(keep_optimizer=True), last())
