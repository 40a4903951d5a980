"""MCC: the loss against slow formulas, and the target network."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from coterie.losses.entropy import cluster_entropy
from coterie.modules.cc import CC, ContrastiveClustering
from coterie.modules.mcc import PARTS
from tests.builders import slow_losses
from tests.builders.federation import SHAPE, same_bits, tiny_task
from tests.builders.modules import fit
from tests.builders.modules import momentum_module as module
from tests.builders.modules import random_views as views

STAGES = tuple(PARTS)


def project(network: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Both views' projections and assignments; in train mode, buffers put back."""
    kept = copy.deepcopy(network.state_dict())
    with torch.no_grad():
        hidden = [network.encoder(view) for view in batch]
        z, c = [network.instance(h) for h in hidden], [network.cluster(h) for h in hidden]
    network.load_state_dict(kept)
    return z, c


@pytest.mark.parametrize("include_positive", [False, True])
def test_joint_loss_is_equation_6_with_the_entropy_subtracted(include_positive: bool) -> None:
    built = module(include_positive=include_positive, instance_temperature=0.4)
    batch = views()
    (z_ao, z_bo), (c_ao, c_bo) = project(built.online, batch)
    (z_at, z_bt), (c_at, c_bt) = project(built.target, batch)
    pairs = [(z_ao, z_bt, 0.4), (z_at, z_bo, 0.4), (c_ao.T, c_bt.T, 1.0), (c_at.T, c_bo.T, 1.0)]
    expected = 0.5 * sum(slow_losses.contrast(u, v, t, include_positive) for u, v, t in pairs)
    entropies = sum(slow_losses.entropy(c) for c in (c_ao, c_bo, c_at, c_bt))
    found = built.training_step(batch, 0)
    assert found["entropy"].item() == pytest.approx(entropies, rel=1e-12)
    assert found["loss"].item() == pytest.approx(expected - entropies, rel=1e-12)


def test_stages_split_the_joint_loss() -> None:
    joint = module("joint")
    batch, terms = views(), {}
    whole = joint.training_step(batch, 0)
    for stage in ("representation", "clustering"):
        part = module(stage)
        part.load_state_dict(joint.state_dict())
        part.target.encoder.load_state_dict(part.online.encoder.state_dict())
        terms[stage] = part.training_step(batch, 0)
    for stage, absent in (
        ("representation", ("cluster", "entropy")),
        ("clustering", ("instance",)),
    ):
        assert [terms[stage][name].item() for name in absent] == [0.0] * len(absent)
    same = module("representation")
    same.load_state_dict(joint.state_dict())
    alone = same.training_step(batch, 0)["loss"].item()
    # Batch statistics do not depend on the buffers that the first forward passes moved.
    assert alone == pytest.approx(whole["instance"].item(), rel=1e-12)


@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("include_positive", [False, True])
def test_equal_networks_give_twice_the_loss_of_cc(include_positive: bool, mode: bool) -> None:
    mcc = module(include_positive=include_positive)
    mcc.target.load_state_dict(mcc.online.state_dict())
    config = CC.Config(form="paper", include_positive=include_positive, projection=5)
    cc = ContrastiveClustering(config, tiny_task())
    cc.online.load_state_dict(mcc.online.state_dict())
    batch = views()
    found = mcc.train(mode).training_step(batch, 0)
    expected = cc.train(mode).training_step(batch, 0)
    for term in ("loss", "instance", "cluster", "entropy"):
        assert found[term].item() == pytest.approx(2 * expected[term].item(), rel=1e-12)


@pytest.mark.parametrize("clusters", [2, 3, 5])
def test_collapse_costs_more_than_balance(clusters: int) -> None:
    built = module("clustering", cluster_temperature=0.7)
    for network in (built.online, built.target):
        network.encoder = network.cluster = nn.Identity()
    balanced = torch.eye(clusters, dtype=torch.float64).repeat(4, 1)
    shares = torch.full((clusters,), 0.01 / (clusters - 1), dtype=torch.float64)
    shares[0] = 0.99
    collapsed = shares.expand(4 * clusters, -1)
    low = built.training_step((balanced, balanced), 0)["loss"].item()
    high = built.training_step((collapsed, collapsed), 0)["loss"].item()
    spread = slow_losses.entropy(collapsed)
    negatives = math.log(2 * clusters - 2)
    assert low == pytest.approx(-1 / 0.7 + negatives - 4 * math.log(clusters), abs=1e-12)
    assert high == pytest.approx(negatives - 4 * spread, abs=1e-9)
    assert high > low + 1.0


@pytest.mark.parametrize("stage", ["clustering", "joint"])
def test_a_step_raises_the_entropy(stage: str) -> None:
    built = module(stage, momentum=0.0)
    with torch.no_grad():
        built.online.cluster.layers[-1].bias.copy_(torch.tensor([3.0, 0.0, -1.0]))
    built.target.load_state_dict(built.online.state_dict())
    batch = views(16)
    optimizer = torch.optim.SGD([p for p in built.parameters() if p.requires_grad], lr=0.1)

    def size_entropy() -> float:
        with torch.no_grad():
            return cluster_entropy(built.online.cluster(built.online.encoder(batch[0]))).item()

    before = size_entropy()
    for _ in range(20):
        optimizer.zero_grad()
        built.training_step(batch, 0)["loss"].backward()
        optimizer.step()
        built.on_train_batch_end(None, batch, 0)
    assert before < 0.5
    assert size_entropy() > before + 0.2


@pytest.mark.parametrize(("kind", "symmetric"), [("four", True), ("two", False)])
def test_four_representations_treat_both_networks_alike(kind: str, symmetric: bool) -> None:
    built, swapped = module(representations=kind), module(representations=kind)
    swapped.online.load_state_dict(built.target.state_dict())
    swapped.target.load_state_dict(built.online.state_dict())
    there, back = (m.training_step(views(), 0)["loss"].item() for m in (built, swapped))
    assert (there == pytest.approx(back, rel=1e-12)) is symmetric


def test_two_representations_are_view_a_online_and_view_b_on_target() -> None:
    built = module(representations="two")
    batch = views()
    (z_ao, _), (c_ao, _) = project(built.online, batch)
    (_, z_bt), (_, c_bt) = project(built.target, batch)
    instance = slow_losses.contrast(z_ao, z_bt, 0.5)
    cluster = slow_losses.contrast(c_ao.T, c_bt.T, 1.0)
    entropies = slow_losses.entropy(c_ao) + slow_losses.entropy(c_bt)
    found = built.training_step(batch, 0)
    assert found["loss"].item() == pytest.approx(instance + cluster - entropies, rel=1e-12)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", ["two", "four"])
def test_each_network_sees_only_its_views(kind: str, stage: str) -> None:
    built = module(stage, representations=kind)
    batch, seen = views(), {"online": [], "target": []}
    head = PARTS[stage][-1]
    for net, inputs in seen.items():
        network = getattr(built, net)
        network.encoder = nn.Flatten()  # heads then see the views themselves
        network.get_submodule(head).layers[0] = nn.Linear(64, 6, dtype=torch.float64)
        if stage == "joint":
            network.instance.layers[0] = nn.Linear(64, 6, dtype=torch.float64)
        network.get_submodule(head).register_forward_pre_hook(
            lambda _, given, inputs=inputs: inputs.append(given[0])
        )
    built.training_step(batch, 0)
    a, b = (view.flatten(1) for view in batch)
    wanted = (
        {"online": [a], "target": [b]} if kind == "two" else {"online": [a, b], "target": [a, b]}
    )
    for net, expected in wanted.items():
        assert len(seen[net]) == len(expected), net
        assert all(torch.equal(x, y) for x, y in zip(seen[net], expected, strict=True))


@pytest.mark.parametrize("kind", ["mcc", "cc"])
def test_views_do_not_depend_on_the_precision(kind: str) -> None:
    samples = torch.randint(0, 256, (5, *SHAPE), dtype=torch.uint8)
    batch, found = {"samples": samples, "seed": 3}, {}
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        built = module() if kind == "mcc" else ContrastiveClustering(CC.Config(), tiny_task())
        found[dtype] = built.to(dtype).on_after_batch_transfer(batch, 0)
    for dtype, drawn in found.items():
        assert all(
            torch.equal(view, single.to(dtype))
            for view, single in zip(drawn, found[torch.float32], strict=True)
        )
    assert not torch.equal(*found[torch.float32])


@pytest.mark.parametrize("stage", STAGES)
def test_momentum_one_keeps_the_targets_parameters(stage: str) -> None:
    built = module(stage, momentum=1.0)
    before = copy.deepcopy(built)
    fit(built)
    for name, value in built.target.named_parameters():
        assert torch.equal(value, before.target.get_parameter(name)), name
    part = PARTS[stage][-1]
    moved = zip(
        built.online.get_submodule(part).parameters(),
        before.online.get_submodule(part).parameters(),
        strict=True,
    )
    assert not any(torch.equal(a, b) for a, b in moved)


@pytest.mark.parametrize("stage", STAGES)
def test_momentum_zero_copies_the_online_network_after_each_step(stage: str) -> None:
    built = module(stage, momentum=0.0)
    seen = []

    def check() -> None:
        for part in PARTS[stage]:
            target, online = built.target.get_submodule(part), built.online.get_submodule(part)
            pairs = zip(target.parameters(), online.parameters(), strict=True)
            seen.append(all(torch.equal(t, o) for t, o in pairs))

    fit(built, check=check)
    assert seen == [True] * 6 * len(PARTS[stage])


def test_the_target_is_the_moving_average_of_the_online_parameters() -> None:
    built = module(momentum=0.9)
    expected = [p.clone() for p in built.target.parameters()]
    steps = []

    def check() -> None:
        steps.append(1)
        for value, online in zip(expected, built.online.parameters(), strict=True):
            value.copy_(0.9 * value + 0.1 * online.detach())

    fit(built, check=check)
    assert len(steps) == 6
    for value, target in zip(expected, built.target.parameters(), strict=True):
        torch.testing.assert_close(target.detach(), value, rtol=0, atol=1e-13)


@pytest.mark.parametrize("stage", STAGES)
def test_no_gradient_reaches_what_the_stage_does_not_train(stage: str) -> None:
    built = module(stage)
    built.training_step(views(), 0)["loss"].backward()
    graded = {name for name, p in built.named_parameters() if p.grad is not None}
    trained = {
        f"online.{part}.{name}"
        for part in PARTS[stage]
        for name, _ in built.online.get_submodule(part).named_parameters()
    }
    assert graded == trained
    groups = built.configure_optimizers().param_groups
    stepped = {id(p) for group in groups for p in group["params"]}
    assert stepped == {id(p) for name, p in built.named_parameters() if name in trained}


def test_the_target_keeps_running_statistics_of_its_own() -> None:
    built = module("representation", momentum=0.5)
    norms = {net: getattr(built, net).encoder.network[2] for net in ("online", "target")}
    means = {net: norm.running_mean.clone() for net, norm in norms.items()}
    variances = {net: norm.running_var.clone() for net, norm in norms.items()}

    def track(net: str):
        def hook(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            batch = inputs[0].detach()
            means[net] = 0.9 * means[net] + 0.1 * batch.mean(dim=0)
            variances[net] = 0.9 * variances[net] + 0.1 * batch.var(dim=0)

        return hook

    for net, norm in norms.items():
        norm.register_forward_pre_hook(track(net))
    fit(built)
    for net, norm in norms.items():
        torch.testing.assert_close(norm.running_mean, means[net], rtol=0, atol=1e-12)
        torch.testing.assert_close(norm.running_var, variances[net], rtol=0, atol=1e-12)
    assert (means["online"] - means["target"]).abs().max() > 1e-4


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_changes_only_its_own_parts(stage: str) -> None:
    built = module(stage)
    before = copy.deepcopy(built)
    fit(built)
    for net in ("online", "target"):
        for part in PARTS["joint"]:
            parts = [getattr(m, net).get_submodule(part).state_dict() for m in (built, before)]
            assert same_bits(*parts) is (part not in PARTS[stage]), (net, part)


def test_stage_two_needs_no_target_encoder() -> None:
    built, other = module("clustering"), module("clustering")
    with torch.no_grad():
        for parameter in other.target.encoder.parameters():
            parameter.fill_(torch.nan)
    found = [m.training_step(views(), 0)["loss"] for m in (built, other)]
    assert torch.equal(*found)
