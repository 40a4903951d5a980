"""Reused models are as new ones, whatever the task before did to them."""

import torch
from lightning import LightningModule

from coterie.execution.module_pool import ModulePool


class Net(LightningModule):
    """Whose task may change values, modes, gradients and what is frozen."""

    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(2, 2)
        self.b = torch.nn.BatchNorm1d(2)
        self.b.eval()
        self.a.bias.requires_grad_(False)
        self.register_buffer("queue", torch.zeros(2), persistent=False)


def test_a_reused_module_is_as_a_new_one():
    pool = ModulePool(3)
    module = pool.fresh("net", Net)
    first = {key: value.clone() for key, value in module.state_dict().items()}
    module.eval().requires_grad_(True)
    module.b.train()
    module.b(module.a(torch.randn(8, 2))).sum().backward()
    with torch.no_grad():
        module.a.weight += 1
        module.queue += 1
    again = pool.fresh("net", Net)
    assert again is module
    assert all(torch.equal(first[key], value) for key, value in again.state_dict().items())
    assert torch.equal(again.queue, torch.zeros(2))  # not in the state, yet one client's
    assert (again.training, again.a.training, again.b.training) == (True, True, False)
    assert not again.a.bias.requires_grad
    assert again.a.weight.requires_grad
    assert again.a.weight.grad is None
    assert pool.fresh("other", Net) is not module


def test_every_process_builds_the_same_initial_module():
    one, other, another = (ModulePool(seed).fresh("net", Net).a.weight for seed in (3, 3, 4))
    assert torch.equal(one, other)
    assert not torch.equal(one, another)


def test_what_is_built_is_finished_once():
    finished = []
    pool = ModulePool(3, finished.append)
    kinds = [pool.fresh("net", Net), pool.fresh("net", Net), pool.beside().fresh("net", Net)]
    assert finished == [kinds[0], kinds[2]]
