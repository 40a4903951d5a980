"""Samples' gradients from hooks against those of each sample alone."""

import pytest
import torch
from torch import nn

from coterie.aggregation.own_gradients import check_own_gradients, sample_hooks
from coterie.errors import ConfigError
from coterie.networks.encoders import MLP, ConvNet2, ConvNet3
from coterie.networks.resnet import ResNet

SHAPE = (3, 16, 16)


class Positions(nn.Module):
    """Patches with a table of positions, as tutorials write it: its first axis is not the batch."""

    def __init__(self, tokens):
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 16 // tokens, 16 // tokens)
        self.positions = nn.Embedding(tokens**2, 8)

    def forward(self, x):
        found = self.patches(x).flatten(2).transpose(1, 2)
        return (found + self.positions(torch.arange(found.shape[1]))).mean(1)


class Meets(nn.Module):
    def forward(self, x):
        return x - x.mean(0, keepdim=True)


class Keeps(nn.Module):
    """A running centre that is no batch norm."""

    def __init__(self):
        super().__init__()
        self.register_buffer("centre", torch.zeros(3, 1, 1))

    def forward(self, x):
        if self.training:
            self.centre.lerp_(x.detach().mean((0, 2, 3))[:, None, None].to(self.centre), 0.1)
        return x - self.centre


class Random(nn.Module):
    def forward(self, x):
        return x * torch.rand(x.shape)


def flat(*layers):
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(4))


def ready(network):
    with torch.no_grad():
        network.eval()(torch.zeros(2, *SHAPE))
    return network


REFUSED = {
    "positions as many as samples": (lambda: Positions(1), r"positions\.weight are not"),
    "positions": (lambda: Positions(4), r"positions\.weight are not"),
    "mean over the batch": (lambda: flat(nn.Conv2d(3, 4, 3), Meets()), r"0\.weight are not"),
    "chance": (lambda: flat(nn.Conv2d(3, 4, 3), Random()), r"0\.weight are not"),
    "running centre": (lambda: flat(Keeps()), r"training changes the encoder's buffer 0\.centre"),
    "in place": (
        lambda: flat(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Identity(), InPlace()),
        "cannot compute each sample's gradient",
    ),
}


class InPlace(nn.Module):
    def forward(self, x):
        x += 1
        return x


@pytest.mark.parametrize("case", REFUSED)
def test_a_network_in_which_samples_have_no_gradients_of_their_own_is_refused(case):
    build, sentence = REFUSED[case]
    with pytest.raises(ConfigError, match=rf"^privacy\.dp\.unit=sample: .*{sentence}"):
        check_own_gradients(ready(build()), SHAPE)


@pytest.mark.parametrize(
    "network",
    [
        lambda: MLP(hidden=(8,)).build(SHAPE),
        lambda: ConvNet2().build(SHAPE),
        lambda: ConvNet3(norm="group", width=8).build(SHAPE),
        lambda: ResNet(norm="group").build(SHAPE),
        lambda: ready(flat(nn.Conv2d(3, 4, 3), nn.Dropout(), nn.ReLU(inplace=True))),
        nn.Flatten,
    ],
    ids=["mlp", "conv2", "conv3", "resnet18", "dropout", "no parameters"],
)
def test_networks_that_keep_samples_apart_pass(network):
    found = network()
    found.train()
    before = {name: tensor.clone() for name, tensor in found.state_dict().items()}
    check_own_gradients(found, SHAPE)
    assert all(torch.equal(before[name], tensor) for name, tensor in found.state_dict().items())
    assert not any(part._backward_hooks for part in found.modules())


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_convolutions_gradients_are_those_of_each_sample_in_any_layout(layout):
    network = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, stride=2), nn.ReLU(inplace=True))
    samples = torch.rand(3, 3, 8, 8).to(memory_format=layout)
    network.to(memory_format=layout)
    alone = [
        torch.autograd.grad(network(sample[None]).square().sum(), network[0].weight)[0]
        for sample in samples
    ]
    undo = sample_hooks(network, "sum")
    network(samples).square().sum().backward()
    torch.testing.assert_close(network[0].weight.grad_sample, torch.stack(alone))
    undo()
    assert network[1].inplace
