"""FedMCC against Algorithms 1 and 2 written down once more, in plain PyTorch and slow loops."""

import copy

import pytest
import torch
from torch import Tensor, nn

from coterie.contract import Plan, Tensors
from coterie.contract.client import ClientData
from coterie.contract.seeds import derive_seed, seeded
from coterie.datamodules.augmentations import DigitsAugmentation
from coterie.execution.batches import SeededBatches
from coterie.modules.fedmcc import FedMCC
from coterie.networks.branch import ContrastiveBranch
from coterie.networks.views import two_views
from tests.builders.federation import SHAPE, SIZES, federate, tiny_task, tiny_workload

EPOCHS, BATCH, RATE, DECAY, MOMENTUM, TAU_I, TAU_C = 2, 8, 3e-3, 0.01, 0.9, 0.4, 0.8


def contrast(u: Tensor, v: Tensor, tau: float) -> Tensor:
    """Eq. (1), anchor by anchor."""

    def s(a: Tensor, b: Tensor) -> Tensor:
        return (a * b).sum() / (a.norm() * b.norm())

    total = torch.zeros((), dtype=u.dtype)
    for i in range(len(u)):
        xi = torch.zeros((), dtype=u.dtype)
        for j in range(len(u)):
            if j != i:
                xi = xi + (s(u[i], u[j]) / tau).exp() + (s(u[i], v[j]) / tau).exp()
        total = total - torch.log((s(u[i], v[i]) / tau).exp() / xi)
    return total / len(u)


def entropy(c: Tensor) -> Tensor:
    """Eq. (3)."""
    total = torch.zeros((), dtype=c.dtype)
    for column in c.T:
        p = column.abs().sum() / c.abs().sum()
        total = total - p * p.log()
    return total


def instance_loss(online: nn.Module, target: nn.Module, a: Tensor, b: Tensor) -> Tensor:
    """Eq. (8)."""
    z_ao, z_bo = online.instance(online.encoder(a)), online.instance(online.encoder(b))
    z_at = target.instance(target.encoder(a)).detach()
    z_bt = target.instance(target.encoder(b)).detach()
    return 0.5 * (contrast(z_ao, z_bt, TAU_I) + contrast(z_at, z_bo, TAU_I))


def cluster_loss(online: nn.Module, target: nn.Module, a: Tensor, b: Tensor) -> Tensor:
    """Eq. (9) with the entropies subtracted; one frozen encoder serves both networks."""
    online.encoder.eval()
    hidden_a, hidden_b = online.encoder(a).detach(), online.encoder(b).detach()
    c_ao, c_bo = online.cluster(hidden_a), online.cluster(hidden_b)
    c_at, c_bt = target.cluster(hidden_a).detach(), target.cluster(hidden_b).detach()
    loss = 0.5 * (contrast(c_ao.T, c_bt.T, TAU_C) + contrast(c_at.T, c_bo.T, TAU_C))
    return loss - entropy(c_ao) - entropy(c_bo) - entropy(c_at) - entropy(c_bt)


STAGES = {
    "representation": (instance_loss, ("encoder", "instance")),
    "clustering": (cluster_loss, ("cluster",)),
}


def local_training(stage: str, online: nn.Module, target: nn.Module, batches: list) -> None:
    """ClientLocalTraining: lines 10 to 15 of Algorithm 1, lines 11 to 16 of Algorithm 2."""
    loss_of, parts = STAGES[stage]
    online.train()
    target.train()
    trained = [p for part in parts for p in online.get_submodule(part).parameters()]
    adam = torch.optim.Adam(trained, lr=RATE, weight_decay=DECAY)
    augment = DigitsAugmentation().build(SHAPE)
    for batch in batches:
        a, b = two_views(augment, batch["samples"], batch["seed"], torch.float64)
        adam.zero_grad()
        loss_of(online, target, a, b).backward()
        adam.step()
        with torch.no_grad():
            for part in parts:
                follow = target.get_submodule(part).parameters()
                lead = online.get_submodule(part).parameters()
                for t, o in zip(follow, lead, strict=True):
                    t.copy_(MOMENTUM * t + (1 - MOMENTUM) * o)


def batches_of(workload, stage_round: int, client: int) -> list:
    data = ClientData(samples=workload.samples["train"], rows=workload.parts[client])
    seed = derive_seed(5, "client", stage_round, 0, client)
    seeded_batches = SeededBatches(data, Plan(batch_size=BATCH, epochs=EPOCHS), seed)
    return [batch for _ in range(EPOCHS) for batch in seeded_batches]


def reference(workload) -> tuple[nn.Module, dict[int, dict[str, nn.Module]]]:
    """One round of Algorithm 1, then one of Algorithm 2; the global model, and the targets."""
    with seeded(derive_seed(5, "init")):
        # The engine builds two networks too and draws the target's weights in vain.
        global_model = ContrastiveBranch(tiny_task(), 5, 3).double()
    targets: dict[int, dict[str, nn.Module]] = {k: {} for k in range(len(SIZES))}
    for number, stage in enumerate(STAGES, start=1):
        locals_ = []
        for client in range(len(SIZES)):
            online, target = copy.deepcopy(global_model), copy.deepcopy(global_model)
            local_training(stage, online, target, batches_of(workload, number, client))
            locals_.append(online)
            targets[client][stage] = target
        for part in STAGES[stage][1]:
            average(global_model.get_submodule(part), [m.get_submodule(part) for m in locals_])
    return global_model, targets


def average(global_model: nn.Module, clients: list[nn.Module]) -> None:
    """Line 7: P(f) ← Σ_k |D_k|/|D| P(f_k), buffers too."""
    states = [client.state_dict() for client in clients]
    for name, value in global_model.state_dict().items():
        if value.is_floating_point():
            shares = [n / sum(SIZES) * s[name] for n, s in zip(SIZES, states, strict=True)]
            value.copy_(sum(shares))


def close(found: Tensors, module: nn.Module, prefix: str) -> None:
    state = module.state_dict()
    names = {f"{prefix}.{name}" for name in state if "num_batches" not in name}
    assert set(found) == names
    for name, value in found.items():
        expected = state[name.removeprefix(f"{prefix}.")]
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("executor", ["bare", "lightning"])
def test_one_round_of_each_stage_is_that_of_the_algorithms(executor: str) -> None:
    config = FedMCC.Config(
        projection=5,
        batch_size=BATCH,
        learning_rate=RATE,
        weight_decay=DECAY,
        momentum=MOMENTUM,
        instance_temperature=TAU_I,
        cluster_temperature=TAU_C,
        representation_rounds=1,
        clustering_rounds=1,
        representation_epochs=EPOCHS,
        clustering_epochs=EPOCHS,
    )
    workload = tiny_workload(config, executor=executor)
    ran = federate(workload)
    global_model, targets = reference(workload)
    slots = ran.state.server.slots
    for part in ("encoder", "instance", "cluster"):
        close(slots[part], global_model.get_submodule(part), f"online.{part}")
        moved = [not torch.equal(v, ran.start.slots[part][n]) for n, v in slots[part].items()]
        assert all(moved), part
    for client in range(len(SIZES)):
        close(ran.kept[client], targets[client]["clustering"].cluster, "target.cluster")
        first = next(t for t in ran.spy.tasks if t.client.id == client).outcome.state
        for part in ("encoder", "instance"):
            ours = {k: v for k, v in first.items() if k.startswith(f"target.{part}.")}
            close(ours, targets[client]["representation"].get_submodule(part), f"target.{part}")
