"""Several cluster projectors side by side: each learns for itself, the best one is kept."""

import pytest
import torch

from coterie.commands.compose import compose
from coterie.contract.phase import Mean
from coterie.run.setup import assemble
from modules.fedmcc import head_losses
from modules.mcc import MomentumContrast

SMALL = (
    "experiment=fedmcc_digits", "cluster=serial", "data.limit=100", "encoder=mlp",
    "encoder.hidden=[16]", "encoder.features=8", "method.hidden=8",
    "method.representation_rounds=1", "method.clustering_rounds=2", "method.cluster_heads=3",
)  # fmt: skip


@pytest.fixture(scope="module")
def assembly():
    return assemble(compose(*SMALL))


def module_of(assembly, **update):
    config = assembly.workload.config.method.model_copy(update=update)
    torch.manual_seed(3)
    return MomentumContrast(config, assembly.workload.task, "clustering")


def test_the_loss_is_the_mean_of_the_heads_own_losses(assembly):
    module = module_of(assembly)
    views = tuple(torch.rand(12, 1, 8, 8) for _ in range(2))
    terms = module.training_step(views, 0)
    own = [terms[f"head_loss/{i}"] for i in range(3)]
    assert terms["loss"].item() == pytest.approx(torch.stack(own).mean().item(), abs=1e-5)
    single = module_of(assembly, cluster_heads=1)
    for i in range(3):
        single.online.encoder.load_state_dict(module.online.encoder.state_dict())
        single.online.cluster.load_state_dict(module.online.cluster.heads[i].state_dict())
        single.target.cluster.load_state_dict(module.target.cluster.heads[i].state_dict())
        assert single.training_step(views, 0)["loss"].item() == pytest.approx(
            own[i].item(), abs=1e-5
        )


def test_no_head_touches_anothers_gradient(assembly):
    module = module_of(assembly)
    views = tuple(torch.rand(12, 1, 8, 8) for _ in range(2))
    module.training_step(views, 0)["head_loss/1"].backward()
    touched = [
        any(p.grad is not None and p.grad.abs().sum() > 0 for p in head.parameters())
        for head in module.online.cluster.heads
    ]
    assert touched == [False, True, False]


def test_the_server_keeps_the_head_of_lowest_running_loss(assembly):
    method, server = assembly.method, assembly.server
    server = server.advance(method.next(server), {})
    phase = method.next(server)
    assert (phase.stage, phase.records) == ("clustering", {"head_losses"})
    mean = {"cluster": Mean(weight=1, tensors=server.slots["cluster"])}
    first = {0: {"head_losses": torch.tensor([-1.0, -3.0, 0.0], dtype=torch.float64)},
             1: {"head_losses": torch.tensor([-2.0, -1.0, 0.0], dtype=torch.float64)}}  # fmt: skip
    server = method.server(server, phase, mean, first)
    assert server.facts == {"head_losses": [-1.5, -2.0, 0.0], "head": 1}
    second = {0: {"head_losses": torch.tensor([-4.0, -2.0, 0.0], dtype=torch.float64)}}
    server = method.server(server, method.next(server), mean, second)
    assert server.facts["head_losses"] == pytest.approx([-2.25, -2.0, 0.0])
    assert server.facts["head"] == 0
    model = method.model_for(server, None)
    kept = server.slots["cluster"]["online.cluster.heads.0.layers.0.weight"]
    assert torch.equal(model.head.layers[0].weight, kept)


def test_head_losses_are_in_the_heads_order():
    metrics = {"loss": 1.0, "head_loss/10": 10.0, "head_loss/2": 2.0, "head_loss/0": 0.0}
    assert head_losses(metrics).tolist() == [0.0, 2.0, 10.0]


def test_one_head_sends_no_record(assembly):
    one = assemble(compose(*SMALL, "method.cluster_heads=1"))
    server = one.server.advance(one.method.next(one.server), {})
    assert one.method.next(server).records == frozenset()
