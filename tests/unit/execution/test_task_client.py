"""Embedding a client's samples, and an optimiser that goes on where it stopped."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn

from coterie.contract import load_optimizer, optimizer_tensors
from coterie.contract.client import ClientData
from coterie.errors import ContractError
from coterie.execution.packing import pack, unpack
from coterie.execution.task_client import embed
from tests.builders.federation import federate, same_bits, tiny_workload
from tests.builders.modules import random_views

CPU = torch.device("cpu")


def network(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(64, 5), nn.BatchNorm1d(5), nn.Dropout(0.5)]
    built = nn.Sequential(*layers).to(dtype)
    built(random_views()[0].to(dtype))  # running statistics of its own
    return built


def test_it_is_the_forward_pass_in_eval_mode_of_all_samples_in_their_order() -> None:
    images = np.random.default_rng(0).integers(0, 256, (600, 1, 8, 8), dtype=np.uint8)
    rows = np.random.default_rng(1).permutation(600)[:520]  # more than two blocks
    built = network()
    found = embed(built, ClientData(samples=images, rows=rows), CPU)
    expected = deepcopy(built).eval()(torch.from_numpy(images[rows]).double() / 255.0)
    assert found.shape == (520, 5)
    assert not found.requires_grad
    torch.testing.assert_close(found, expected.detach(), rtol=0, atol=1e-14)


def test_it_leaves_modes_and_values_as_they_were() -> None:
    built = network(torch.float32)
    built[2].eval()
    before = {key: value.clone() for key, value in built.state_dict().items()}
    data = ClientData(samples=np.ones((3, 1, 8, 8), np.float32), rows=np.arange(3))
    assert embed(built, data, CPU).dtype == torch.float32
    assert same_bits(before, built.state_dict())
    assert [part.training for part in built] == [True, True, False, True]


def test_a_client_embeds_its_own_samples() -> None:
    from coterie.modules.ccfc import SCFC

    ran = federate(tiny_workload(SCFC.Config(rounds=1, projection=4)))
    model = ran.spy.model_for(ran.state.server, None).eval()
    for task in ran.spy.tasks:
        found = task.client.embed(model.encoder)
        expected = model(task.client.data.take()).embedding
        torch.testing.assert_close(found, expected.detach(), rtol=0, atol=1e-14)


def steps(built: nn.Module, adam: torch.optim.Optimizer, seeds: range) -> None:
    for seed in seeds:
        adam.zero_grad()
        built(random_views(seed=seed)[0]).square().mean().backward()
        adam.step()


def test_an_optimiser_that_is_kept_goes_on_to_the_bit() -> None:
    whole, halved = (network().eval() for _ in range(2))  # eval: no dropout to draw
    adam = torch.optim.Adam(whole.parameters(), lr=0.1)
    steps(whole, adam, range(6))
    first = torch.optim.Adam(halved.parameters(), lr=0.1)
    steps(halved, first, range(3))
    kept = unpack(pack(optimizer_tensors(halved, first)))
    before = {key: value.clone() for key, value in kept.items()}
    assert set(kept) == {
        f"{name}/{entry}"
        for name, _ in halved.named_parameters()
        for entry in ("step", "exp_avg", "exp_avg_sq")
    }
    second = torch.optim.Adam(halved.parameters(), lr=0.1)
    load_optimizer(halved, second, kept)
    steps(halved, second, range(3, 6))
    assert same_bits(whole.state_dict(), halved.state_dict())
    assert same_bits(before, kept), "it wrote into what the client kept"


def test_an_optimiser_that_keeps_more_than_tensors_is_refused() -> None:
    built = network().eval()
    lbfgs = torch.optim.LBFGS(built.parameters(), max_iter=1)

    def closure() -> torch.Tensor:
        lbfgs.zero_grad()
        loss = built(random_views(seed=0)[0]).square().mean()
        loss.backward()
        return loss

    lbfgs.step(closure)
    with pytest.raises(ContractError, match=r"LBFGS keeps a \w+ as .*; choose another optimiser\."):
        optimizer_tensors(built, lbfgs)


def test_nothing_kept_starts_it_afresh() -> None:
    built = network()
    adam = torch.optim.Adam(built.parameters())
    load_optimizer(built, adam, {})
    assert dict(adam.state) == {}
    assert optimizer_tensors(built, adam) == {}


def test_a_network_that_fails_is_left_as_it_was() -> None:
    built = nn.Sequential(network(torch.float32), nn.Linear(3, 1))  # does not fit
    with pytest.raises(RuntimeError, match="shapes"):
        embed(built, torch.ones(3, 1, 8, 8), CPU)
    assert all(part.training for part in built.modules())
