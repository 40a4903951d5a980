"""Autocast within `vmap`: the types that it gives, against PyTorch's own without `vmap`."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional

from coterie.execution.vmap_autocast import VmapAutocast
from coterie.precision import in_float32

CLIENTS = 3
PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "matmul": torch.matmul,
    "@": lambda a, b: a @ b,
    "mm": torch.mm,
    "linear": lambda a, b: functional.linear(a, b.T),
    "addmm": lambda a, b: torch.addmm(torch.zeros(4, 4), a, b),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_have_the_type_that_they_have_without_vmap(name: str) -> None:
    a, b = torch.randn(CLIENTS, 4, 5), torch.randn(CLIENTS, 5, 4)
    with torch.autocast("cpu", torch.bfloat16):
        alone = torch.stack([PRODUCTS[name](x, y) for x, y in zip(a, b, strict=True)])
        with VmapAutocast():
            vmapped = vmap(PRODUCTS[name])(a, b)
    assert vmapped.dtype == alone.dtype == torch.bfloat16
    assert torch.equal(vmapped, alone)


def test_without_autocast_nothing_changes() -> None:
    a, b = torch.randn(CLIENTS, 4, 5), torch.randn(CLIENTS, 5, 4)
    with VmapAutocast():
        assert torch.equal(vmap(torch.matmul)(a, b), torch.bmm(a, b))


def test_a_loss_that_disables_autocast_stays_in_float32() -> None:
    a, b = torch.randn(CLIENTS, 4, 5), torch.randn(CLIENTS, 5, 4)
    with torch.autocast("cpu", torch.bfloat16), VmapAutocast():
        vmapped = vmap(in_float32(torch.matmul))(a, b)
    assert vmapped.dtype == torch.float32
    torch.testing.assert_close(vmapped, torch.bmm(a, b))


def test_gradients_are_those_of_autocast_without_vmap() -> None:
    torch.manual_seed(0)
    nets = [
        nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)
        )
        for _ in range(CLIENTS)
    ]
    images = torch.randn(CLIENTS, 5, 1, 8, 8)
    parameters, buffers = stack_module_state(nets)

    def loss(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        outputs: Tensor = functional_call(nets[0], {**parameters, **buffers}, (x,))
        return outputs.float().square().mean()

    with torch.autocast("cpu", torch.bfloat16):
        with VmapAutocast():
            vmap(loss)(parameters, buffers, images).sum().backward()  # type: ignore[no-untyped-call]
        for net, x in zip(nets, images, strict=True):
            net(x).float().square().mean().backward()
    for client, net in enumerate(nets):
        for name, parameter in net.named_parameters():
            vmapped = parameters[name].grad
            assert vmapped is not None
            assert parameter.grad is not None
            torch.testing.assert_close(vmapped[client], parameter.grad, rtol=0.05, atol=2e-2)
