"""DEC: its formulas, its phases, all rounds against a plain loop, and what is sent."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coterie.clustering.kmeans import counted_means, kmeans
from coterie.contract import Plan, ServerState, Task, WeightedUpdate, load_slots
from coterie.contract.client import Batch
from coterie.contract.seeds import derive_seed
from coterie.errors import ConfigError, RunError
from coterie.modules.dec import DEC
from coterie.modules.soft_clusters import SelfTraining, SoftClusters, target
from coterie.networks.encoders import Raw
from coterie.networks.gan import build_generator
from tests.builders.federation import (
    SHAPE,
    SIZES,
    Federated,
    SpiedTask,
    TinyEncoder,
    federate,
    tiny_task,
    tiny_workload,
)
from tests.builders.plain_rounds import assert_same_weights, average_round, loaded

K, LATENT = 3, 4
PRETRAIN = {"pretrain_rounds": 1, "pretrain_epochs": 1}
CONFIG = DEC.Config(
    latent=LATENT, hidden=7, width=2, batch_size=8, epochs=2, rounds=2, restarts=2, **PRETRAIN
)
NAMES = ["representation", "centroids", "frequencies", "clustering", "frequencies", "clustering"]
VECTORS = Task(
    shape=(2,), classes=K, encoder=Raw(), augmentation=tiny_task().augmentation, dtype=torch.float64
)


@pytest.fixture(scope="module")
def ran() -> Federated:
    return federate(tiny_workload(CONFIG))


def tasks_of(ran: Federated, name: str) -> list[SpiedTask]:
    return [task for task in ran.spy.tasks if task.phase.name == name]


def slow_q(z: Tensor, centroids: Tensor) -> Tensor:
    """Eq. (1) with α = 1, one number after the other."""
    q = torch.zeros(len(z), len(centroids), dtype=torch.float64)
    for i, point in enumerate(z):
        near = [
            1 / (1 + sum((a - b) ** 2 for a, b in zip(point, c, strict=True))) for c in centroids
        ]
        for j, one in enumerate(near):
            q[i, j] = one / sum(near)
    return q


def slow_p(q: Tensor) -> Tensor:
    """Eq. (3) of all samples, with f_j = Σ_i q_ij."""
    p = torch.zeros_like(q)
    for i in range(len(q)):
        weights = [q[i, j] ** 2 / sum(q[:, j]) for j in range(q.shape[1])]
        p[i] = torch.stack(weights) / sum(weights)
    return p


def points(count: int, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(count, 2, generator=draw, dtype=torch.float64)


def test_soft_assignments_and_targets_are_those_of_the_paper() -> None:
    z, clusters = 3 * points(7, 0), SoftClusters(K, 2).double()
    q = clusters(z)
    torch.testing.assert_close(q, slow_q(z, clusters.centroids.detach()), rtol=0, atol=1e-14)
    torch.testing.assert_close(target(q, q.sum(dim=0)), slow_p(q), rtol=0, atol=1e-14)
    torch.testing.assert_close(target(q, q.mean(dim=0)), slow_p(q), rtol=0, atol=1e-14)


def test_assignments_are_in_float32_and_finite_far_away_and_on_a_centroid() -> None:
    clusters = SoftClusters(2, 2).to(torch.bfloat16)
    with torch.no_grad():
        clusters.centroids.copy_(torch.tensor([[0.0, 0.0], [1.0, 0.0]]))
    z = torch.tensor([[0.0, 0.0], [1e9, 0.0]], dtype=torch.bfloat16, requires_grad=True)
    q = clusters(z)
    assert q.dtype == torch.float32
    torch.testing.assert_close(q, torch.tensor([[2 / 3, 1 / 3], [0.5, 0.5]]))
    q[:, 0].sum().backward()
    assert z.grad is not None
    assert z.grad.isfinite().all()
    assert clusters.centroids.grad.isfinite().all()


def test_the_loss_and_its_gradients_are_those_of_the_paper() -> None:
    """Eq. (2), (4) and (5) of vectors that are their own embedding, the mean over a batch."""
    module = SelfTraining(CONFIG.model_copy(update={"latent": None}), VECTORS)
    everybody, z = points(20, 1), points(6, 2).requires_grad_()
    before = module.clusters.centroids.detach().clone()
    shares = slow_q(everybody, before).mean(dim=0)
    module.frequencies.running_mean.copy_(shares)
    module.start()
    with torch.no_grad():
        module.clusters.centroids.add_(0.3)  # P stays that of the centroids before
    module.on_train_epoch_start()
    loss = module.training_step({"samples": z}, 0)["loss"]
    loss.backward()
    c = module.clusters.centroids.detach()
    weights = slow_q(z.detach(), before) ** 2 / shares
    p, q = weights / weights.sum(dim=1, keepdim=True), slow_q(z.detach(), c)
    wanted = sum(p[i, j] * torch.log(p[i, j] / q[i, j]) for i in range(6) for j in range(K)) / 6
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-10)
    by_z, by_c = torch.zeros_like(z), torch.zeros_like(c)
    for i in range(6):
        for j in range(K):
            away = z[i].detach() - c[j]
            pull = 2 / (1 + away.square().sum()) * (p[i, j] - q[i, j]) * away / 6
            by_z[i] += pull
            by_c[j] -= pull
    torch.testing.assert_close(z.grad, by_z, rtol=0, atol=1e-12)
    torch.testing.assert_close(module.clusters.centroids.grad, by_c, rtol=0, atol=1e-12)
    learned = {
        id(p) for group in module.configure_optimizers().param_groups for p in group["params"]
    }
    assert learned == {id(p) for p in module.assigner().parameters()}


def fed(method: DEC, state: ServerState, **absent: float) -> list[tuple[Any, ...]]:
    """Every phase from this state; nobody takes part the first so many times in those named."""
    phases: list[tuple[Any, ...]] = []
    while (phase := method.next(state)) is not None:
        assert phase == method.next(state)
        phases.append((phase.name, phase.round, phase.step, phase.ends_round))
        if sum(name == phase.name for name, *_ in phases) <= absent.get(phase.name, 0):
            state = state.advance(phase, {})
            continue
        means = {s: WeightedUpdate(weight=1, tensors=state.slots[s]) for s in phase.up}
        gathered = {0: {"centroids": torch.randn(K, LATENT)}} if phase.gathered else {}
        state = method.server(state, phase, means, gathered)
    assert state.round == method.rounds
    return phases


def started(**changes: Any) -> tuple[DEC, ServerState]:
    method = DEC(CONFIG.model_copy(update=changes), tiny_task())
    return method, method.init(dict(enumerate(SIZES)), 0)


def test_a_round_of_clusters_measures_and_then_trains() -> None:
    assert fed(*started()) == [
        ("representation", 1, 0, True),
        ("centroids", 2, 0, False),
        ("frequencies", 2, 1, False),
        ("clustering", 2, 2, True),
        ("frequencies", 3, 0, False),
        ("clustering", 3, 1, True),
    ]
    assert fed(*started(pretrain_rounds=0, latent=None, rounds=1)) == [
        ("centroids", 1, 0, False),
        ("frequencies", 1, 1, False),
        ("clustering", 1, 2, True),
    ]


def test_a_phase_without_clients_is_repeated_until_the_rounds_third_ends_it() -> None:
    given = started(pretrain_rounds=0, latent=None)
    alone = [("centroids", n, step, step == 2) for n in (1, 2) for step in range(3)]
    assert fed(*given, centroids=math.inf) == alone
    assert fed(*given, frequencies=math.inf) == [
        ("centroids", 1, 0, False),
        ("frequencies", 1, 1, False),
        ("frequencies", 1, 2, True),
        *[("frequencies", 2, step, step == 2) for step in range(3)],
    ]
    # The round's third phase measures, so that the next one can train at once.
    assert fed(*given, centroids=1) == [
        ("centroids", 1, 0, False),
        ("centroids", 1, 1, False),
        ("frequencies", 1, 2, True),
        ("clustering", 2, 0, True),
    ]


def test_without_training_the_frequencies_stay_those_of_the_weights() -> None:
    assert fed(*started(pretrain_rounds=0, latent=None), clustering=1) == [
        ("centroids", 1, 0, False),
        ("frequencies", 1, 1, False),
        ("clustering", 1, 2, True),
        ("clustering", 2, 0, True),
    ]


def test_centroids_are_mined_in_the_global_embedding_and_clustered_again(ran: Federated) -> None:
    tasks = tasks_of(ran, "centroids")
    for task in tasks:
        latent = embedded(ran, task.slots, task.client.data.take())
        draw = derive_seed(task.client.seed, "kmeans")
        wanted, _ = counted_means(latent, kmeans(latent, K, seed=draw, restarts=2))
        torch.testing.assert_close(task.outcome.gathered["centroids"], wanted)
    _, phase, _, gathered, after = ran.spy.served[1]
    stacked = torch.cat([gathered[c]["centroids"] for c in sorted(gathered)])
    draw = derive_seed(ran.start.metadata["seed"], "kmeans", phase.round, phase.step)
    again = kmeans(stacked, K, seed=draw, restarts=2).centroids
    assert torch.equal(after.slots["centroids"]["clusters.centroids"], again.double())


def embedded(ran: Federated, slots: Any, samples: Tensor) -> Tensor:
    """The embedding by these slots, in eval mode."""
    encoder = {"backbone": TinyEncoder().build(SHAPE), "latent": nn.Linear(6, LATENT)}
    world = loaded({"encoder": nn.ModuleDict(encoder)}, {"encoder": slots["encoder"]}).eval()
    with torch.no_grad():
        return world["encoder"]["latent"](world["encoder"]["backbone"](samples.double() / 255))


def test_frequencies_are_those_of_the_union(ran: Federated) -> None:
    """The mean over clients of f/n, weighted by their samples, is f/n of all samples."""
    samples = torch.from_numpy(ran.backend.worker.samples["train"])
    measured = [served for served in ran.spy.served if served[1].name == "frequencies"]
    assert len(measured) == 2
    for before, _, _, _, after in measured:
        centroids = before.slots["centroids"]["clusters.centroids"]
        q = slow_q(embedded(ran, before.slots, samples), centroids)
        (found,) = after.slots["frequencies"].values()
        torch.testing.assert_close(found, q.mean(dim=0), rtol=0, atol=1e-14)
        assert found.sum().item() == pytest.approx(1)


def test_all_rounds_are_those_of_a_plain_loop(ran: Federated) -> None:
    follow(ran, tiny_workload(CONFIG))


def test_with_one_client_it_is_dec() -> None:
    given = tiny_workload(CONFIG)
    alone = replace(given, parts=[np.arange(sum(SIZES))])
    follow(federate(alone), alone)


def follow(ran: Federated, workload: Any) -> None:
    """The autoencoder's round; then P of all samples, by eq. (3), before each round on it."""
    images = torch.from_numpy(workload.samples["train"]).double() / 255
    rows = [torch.from_numpy(part) for part in workload.parts]

    def embed(net: Any, batch: Tensor) -> Tensor:
        found: Tensor = net["encoder"]["latent"](net["encoder"]["backbone"](batch))
        return found

    def rebuild(net: Any, batch: Batch, _: int) -> Tensor:
        x = batch["samples"].double() / 255
        return (net["decoder"](embed(net, x)) - x).square().mean()

    def sharpen(net: Any, batch: Batch, client: int) -> Tensor:
        p = wanted[rows[client][batch["positions"]]]
        z, c = embed(net, batch["samples"].double() / 255), net["clusters"].centroids
        kernel = 1 / (1 + (z[:, None] - c[None]).square().sum(dim=2))
        q = kernel / kernel.sum(dim=1, keepdim=True)
        return (p * torch.log(p / q)).sum() / len(p)

    encoder = nn.ModuleDict(
        {"backbone": TinyEncoder().build(SHAPE), "latent": nn.Linear(6, LATENT)}
    )
    networks = {"encoder": encoder, "decoder": build_generator(SHAPE, LATENT, 7, 2)}
    world = loaded(networks, {s: ran.start.slots[s] for s in networks})
    first = Plan(batch_size=8, epochs=1)
    average_round(world, workload, (1, 0), first, rebuild, partial(torch.optim.Adam, lr=1e-3))
    world["clusters"] = nn.Module()
    (mined,) = [after for _, phase, _, _, after in ran.spy.served if phase.name == "centroids"]
    found = mined.slots["centroids"]["clusters.centroids"]
    world["clusters"].centroids = nn.Parameter(found.clone())
    plan, sgd = Plan(batch_size=8, epochs=2), partial(torch.optim.SGD, lr=0.01, momentum=0.9)
    for at in ((2, 2), (3, 1)):
        with torch.no_grad():
            wanted = slow_p(slow_q(embed(world.eval(), images), world["clusters"].centroids))
        average_round(world, workload, at, plan, sharpen, sgd)
    slots = ran.state.server.slots
    assert_same_weights(world, {s: slots[s] for s in ("encoder", "decoder", "centroids")}, 1e-9)


def test_what_crosses_in_each_phase(ran: Federated) -> None:
    networks, clusters = {"encoder", "decoder"}, {"encoder", "centroids"}
    expected = {
        "representation": (networks, networks, set(), {"loss"}),
        "centroids": ({"encoder"}, set(), {"centroids"}, set()),
        "frequencies": (clusters, {"frequencies"}, set(), set()),
        "clustering": (clusters | {"frequencies"}, clusters, set(), {"loss"}),
    }
    assert [task.phase.name for task in ran.spy.tasks] == [n for n in NAMES for _ in SIZES]
    for task in ran.spy.tasks:
        outcome = task.outcome
        found = (task.slots, outcome.up, outcome.gathered, outcome.metrics)
        assert tuple(map(set, found)) == expected[task.phase.name]
        assert outcome.state is None
        assert {m.weight for m in outcome.up.values()} <= {len(task.client.data)}
    for task in tasks_of(ran, "frequencies"):
        (sent,) = task.outcome.up["frequencies"].tensors.values()
        assert (tuple(sent.shape), sent.sum().item()) == ((K,), pytest.approx(1))


def test_the_target_is_of_the_frozen_model_that_was_received(ran: Federated) -> None:
    task = tasks_of(ran, "clustering")[0]
    module = SelfTraining(CONFIG, tiny_task())
    load_slots(module, task.slots)
    module.start()
    start = {name: value.clone() for name, value in module.global_model.state_dict().items()}
    task.client.fit(module, Plan(batch_size=8, epochs=1))
    after = module.global_model.state_dict()
    assert all(torch.equal(start[name], value) for name, value in after.items())
    moved = module.assigner().state_dict()
    assert not torch.equal(moved["1.centroids"], after["1.centroids"])
    assert not torch.equal(moved["0.latent.weight"], after["0.latent.weight"])


def test_the_model_is_the_encoder_and_then_soft_assignments_too(ran: Federated) -> None:
    samples = torch.from_numpy(ran.backend.worker.samples["train"])
    assert ran.spy.model_for(ran.start, None).eval()(samples).probabilities is None
    server = ran.state.server
    found = ran.spy.model_for(server, None).eval()(samples)
    latent = embedded(ran, server.slots, samples)
    torch.testing.assert_close(found.embedding, latent)
    q = slow_q(latent, server.slots["centroids"]["clusters.centroids"])
    torch.testing.assert_close(found.probabilities, q, rtol=0, atol=1e-12)


def test_a_fixed_encoder_is_not_sent_back_and_its_centroids_are_trained() -> None:
    workload = tiny_workload(CONFIG.model_copy(update={"latent": None}))
    task = replace(workload.task, encoder=Raw())
    ran = federate(replace(workload, task=task))
    last = ran.spy.tasks[-1]
    assert (set(last.outcome.up), last.phase.name) == ({"centroids"}, "clustering")
    (sent,) = last.outcome.up["centroids"].tensors.values()
    assert not torch.equal(sent, last.slots["centroids"]["clusters.centroids"])


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^method\.clusters=10: client 2 has 9 samples"):
        DEC(DEC.Config(clusters=10), tiny_task()).init(dict(enumerate(SIZES)), 0)
    with pytest.raises(ConfigError, match=r"^method\.clusters=1: it must be at least 2"):
        DEC(DEC.Config(clusters=1), tiny_task())


def test_centroids_of_fewer_samples_than_the_minimum_are_not_sent() -> None:
    workload = tiny_workload(CONFIG)
    ran = federate(replace(workload, task=replace(workload.task, k_anonymity=5)))
    sent = [len(task.outcome.gathered["centroids"]) for task in tasks_of(ran, "centroids")]
    assert 3 <= sum(sent) < 9
    for count, task in zip(sent, tasks_of(ran, "centroids"), strict=True):
        assert task.outcome.smallest["centroids"] >= 5 or count == 0
        assert task.outcome.note.startswith(f"it sends {count} of 3 centroids") or count == 3
    with pytest.raises(RunError, match=r"^method\.clusters=3: clients sent only 0 centroids of"):
        federate(replace(workload, task=replace(workload.task, k_anonymity=99)))


def test_defaults_are_those_of_the_paper_and_of_its_code() -> None:
    config = DEC.Config()
    assert (config.latent, config.restarts, config.batch_size) == (10, 20, 256)
    assert (config.clustering_learning_rate, config.sgd_momentum) == (0.01, 0.9)


def test_a_random_layer_behind_a_pretrained_encoder_is_refused() -> None:
    config = DEC.Config(pretrain_rounds=0, latent=3)
    with pytest.raises(
        ConfigError, match=r"^method\.pretrain_rounds=0: the layer of method\.latent"
    ):
        DEC(config, tiny_task())
