"""Representations of pictures and their mirror images."""

import pytest
import torch
from torch import Tensor, nn

from coterie.networks.encoders import ConvNet2
from coterie.networks.mirrored import PICTURES, Mirrored

IMAGES = torch.rand(2 * PICTURES + 3, 3, 12, 12, generator=torch.Generator().manual_seed(0))


class Counts(nn.Module):
    """Gives the first pixels, and counts the samples that it sees at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def forward(self, images: Tensor) -> Tensor:
        self.seen.append(len(images))
        return images[:, :, 0, 0]


@pytest.fixture
def network() -> nn.Module:
    torch.manual_seed(0)
    return ConvNet2(features=32).build((3, 12, 12)).eval()


def test_it_is_the_unit_mean_of_unit_vectors() -> None:
    unit = nn.functional.normalize
    first, last = (unit(IMAGES[:, :, 0, column]) for column in (0, -1))
    both = Mirrored(Counts(), differences=True)(IMAGES)
    assert torch.allclose(both[:, :3], unit(first + last), atol=1e-6)
    assert torch.allclose(both[:, 3:], last - first, atol=1e-6)
    assert torch.equal(Mirrored(Counts())(IMAGES), both[:, :3])


def test_the_network_always_sees_as_many() -> None:
    counts = Counts()
    Mirrored(counts)(IMAGES)
    assert counts.seen == [2 * PICTURES] * 3


@torch.no_grad()
def test_a_picture_has_the_same_bits_in_any_company(network: nn.Module) -> None:
    mirrored = Mirrored(network, differences=True)
    whole = mirrored(IMAGES)
    order = torch.randperm(len(IMAGES), generator=torch.Generator().manual_seed(1))
    parts = [mirrored(IMAGES[rows]) for rows in order.split([1, 5, 13])]
    assert torch.equal(torch.cat(parts), whole[order])


@torch.no_grad()
def test_a_program_of_it_takes_batches_of_any_size(network: nn.Module) -> None:
    program = torch.export.export(
        Mirrored(network), (IMAGES[:2],), dynamic_shapes=({0: torch.export.Dim("n")},)
    )
    for size in (1, 3, len(IMAGES)):
        found = program.module()(IMAGES[:size])
        assert torch.allclose(found, Mirrored(network)(IMAGES[:size]), atol=1e-5)
