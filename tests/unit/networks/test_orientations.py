"""Orientations of gradients: what they see, and that nothing but the sample moves their bits."""

import pytest
import torch

from coterie.errors import ConfigError
from coterie.networks.orientations import Orientations, directions


def images(count: int = 9, side: int = 12, channels: int = 1) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randint(0, 256, (count, channels, side, side)).float() / 255


def test_a_samples_bits_depend_on_no_other_sample_or_threads() -> None:
    encoder, x = Orientations(cells=4).build((1, 12, 12)), images(300)
    whole = encoder(x)
    for size in (1, 7, 64):
        assert torch.equal(torch.cat([encoder(part) for part in x.split(size)]), whole)
    assert torch.equal(encoder(x.double()).float(), whole)
    assert torch.equal(encoder.double()(x.double()).float(), whole)
    steps = whole * 4096
    assert torch.equal(steps, steps.round())
    torch.testing.assert_close(whole.norm(dim=1), torch.ones(300), atol=2e-3, rtol=0)


@pytest.mark.parametrize("direction", range(8))
def test_a_ramp_has_one_direction(direction: int) -> None:
    across, down = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1))[direction]
    row, column = torch.meshgrid(torch.arange(10.0), torch.arange(10.0), indexing="ij")
    ramp = (across * column + down * row + 20) * 4 / 255
    seen = Orientations(cells=1).build((1, 10, 10))(ramp[None, None])[0]
    assert int(seen.argmax()) == direction


def test_a_gradient_is_the_sum_of_its_parts() -> None:
    x, y = torch.tensor([[[[3.0, -5.0]]]]), torch.tensor([[[[-7.0, 2.0]]]])
    parts = directions(x, y)[0, :, 0, 0]
    assert parts[:, 0].tolist() == [0, 0, 0, 16 * 4, 0, 0, 0, 23 * 3]
    assert parts[:, 1].tolist() == [0, 16 * 3, 0, 0, 0, 23 * 2, 0, 0]


def test_brightness_and_contrast_do_not_matter_and_blank_images_are_zero() -> None:
    encoder = Orientations(cells=3).build((1, 12, 12))
    x = (images(4) * 100).round()
    once, brighter = encoder(x / 255), encoder((x * 2 + 50) / 255)
    torch.testing.assert_close(once, brighter, atol=2e-3, rtol=0)
    assert torch.equal(encoder(torch.full((1, 1, 12, 12), 0.5)), torch.zeros(1, 72))


def test_colour_images_and_odd_sizes() -> None:
    assert Orientations().build((3, 33, 41))(torch.rand(2, 3, 33, 41)).shape == (2, 200)
    with pytest.raises(ConfigError, match=r"data\.size=10"):
        Orientations().build((1, 8, 8))
    with pytest.raises(ConfigError, match="not samples of shape"):
        Orientations().build((64,))
