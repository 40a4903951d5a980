"""CP-CFL and IFCA against algorithm 2 written down once more, in plain PyTorch and slow loops."""

import copy

import pytest
import torch
from torch import Tensor, nn

from coterie.contract import Plan
from coterie.contract.client import ClientData
from coterie.contract.seeds import derive_seed, seeded
from coterie.execution.batches import SeededBatches
from coterie.modules.classification import Classification
from tests.builders.cpcfl import models, pool_workload, ran_with, short, short_ifca
from tests.builders.federation import SIZES

EPOCHS, BATCH, RATE = 2, 8, 0.01
CONFIGS = {
    "cpcfl": short(rounds=4, explore_rounds=2),
    "encoder for one epoch": short(rounds=3, explore_rounds=1, encoder_epochs=1, head_layers=2),
    "shared encoder": short(rounds=3, explore_rounds=1, shared_encoder=True, clusters=3),
    "ifca": short_ifca(rounds=3, clusters=3),
}


class Model:
    """An encoder and a head of the pool."""

    def __init__(self, built: Classification) -> None:
        self.encoder, self.head = built.encoder, built.classifier


def initial_pool(workload, config) -> list[Model]:
    """Line 3: N heads, on one encoder or each on its own."""
    seed, pool = derive_seed(5, "init"), []
    for n in range(config.clusters):
        with seeded(seed if n == 0 else derive_seed(seed, "model", n)):
            pool.append(Model(Classification(config, workload.task)))
    if config.initial == "common":
        for model in pool[1:]:
            model.encoder = copy.deepcopy(pool[0].encoder)
    return pool


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Eq. (3) and (4), sample by sample."""
    terms = []
    for row, label in zip(logits, labels.tolist(), strict=True):
        p = row.exp() / row.exp().sum()
        terms.append(-p[label].log())
    return sum(terms) / len(terms)


def loss_on(model: Model, data: ClientData) -> float:
    """The loss on a client's whole data, in eval mode."""
    encoder, head = copy.deepcopy(model.encoder).eval(), model.head
    with torch.no_grad():
        x = data.take().double() / 255
        return float(cross_entropy(head(encoder(x)), data.take_labels()))


def adam_step(parameters: list[Tensor], moments: dict, gradients: list[Tensor]) -> None:
    """Kingma and Ba, algorithm 1."""
    for value, gradient in zip(parameters, gradients, strict=True):
        step, m, v = moments.get(id(value), (0, torch.zeros_like(value), torch.zeros_like(value)))
        step, m, v = step + 1, 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        moments[id(value)] = (step, m, v)
        m_hat, v_hat = m / (1 - 0.9**step), v / (1 - 0.999**step)
        with torch.no_grad():
            value.sub_(RATE * m_hat / (v_hat.sqrt() + 1e-8))


def train(model: Model, data: ClientData, seed: int, encoder_epochs: int) -> Model:
    """Lines 21 to 25; the encoder is frozen after its epochs."""
    local, moments = copy.deepcopy(model), {}
    batches = SeededBatches(data, Plan(batch_size=BATCH, epochs=EPOCHS), seed, with_labels=True)
    for epoch in range(EPOCHS):
        trains = epoch < encoder_epochs
        local.encoder.train(trains)
        values = [*local.head.parameters(), *(local.encoder.parameters() if trains else [])]
        for batch in batches:
            x = (batch["samples"].float() / 255).double()  # views are drawn in float32
            logits = local.head(local.encoder(x))
            loss = cross_entropy(logits, batch["labels"])
            adam_step(values, moments, torch.autograd.grad(loss, values))
    return local


def average(old: nn.Module, trained: list[tuple[int, nn.Module]]) -> None:
    """Eq. (6)."""
    total = sum(size for size, _ in trained)
    for name, value in old.state_dict().items():
        if trained and value.is_floating_point():
            value.copy_(sum(size / total * new.state_dict()[name] for size, new in trained))


def reference(workload, config) -> tuple[list[Model], list[list[int]]]:
    pool, history = initial_pool(workload, config), []
    everything = EPOCHS if config.encoder_epochs is None else config.encoder_epochs
    for t in range(config.rounds):
        members: dict[int, list[tuple[int, Model]]] = {n: [] for n in range(len(pool))}
        row, explores = [], t < config.explore_rounds
        for client, size in enumerate(SIZES):
            seed = derive_seed(5, "client", t + 1, 0, client)
            data = ClientData(
                samples=workload.samples["train"],
                rows=workload.parts[client],
                labels=workload.labels,
            )
            losses = [loss_on(model, data) for model in pool]
            choice = losses.index(min(losses))
            if explores:
                choice = derive_seed(seed, "choice") % len(pool)
            local = train(pool[choice], data, seed, 0 if explores else everything)
            members[choice].append((size, local))
            row.append(choice)
        history.append(row)
        for n, model in enumerate(pool):
            average(model.head, [(size, local.head) for size, local in members[n]])
            everybody = [one for those in members.values() for one in those]
            shared = everybody if config.shared_encoder else members[n]
            if not explores:
                average(model.encoder, [(size, local.encoder) for size, local in shared])
    return pool, history


@pytest.mark.parametrize("executor", ["bare", "lightning"])
@pytest.mark.parametrize("name", list(CONFIGS))
def test_whole_rounds_are_those_of_the_algorithm(name: str, executor: str) -> None:
    config = CONFIGS[name]
    ran = ran_with(config, executor=executor)
    pool, history = reference(pool_workload(config), config)
    assert list(ran.spy.method.client_groups(ran.state.server).values()) == history
    found = models(ran.state.server.slots, config.clusters)
    start = models(ran.start.slots, config.clusters)
    moved = 0
    for ours, begun, theirs in zip(found, start, pool, strict=True):
        wanted = {f"encoder.{k}": v for k, v in theirs.encoder.state_dict().items()}
        wanted |= {f"classifier.{k}": v for k, v in theirs.head.state_dict().items()}
        wanted = {k: v for k, v in wanted.items() if "num_batches" not in k}
        assert ours.keys() == wanted.keys()
        for key, value in ours.items():
            torch.testing.assert_close(value, wanted[key], rtol=0, atol=1e-10)
            moved += not torch.equal(value, begun[key])
    assert moved >= len(found[0]), "nothing was trained"
    assert len({choice for row in history for choice in row}) > 1, (
        "everybody chose one model: take another seed"
    )
