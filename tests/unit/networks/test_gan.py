"""The networks of a GAN: what they map, and to which range."""

import pytest
import torch

from coterie.networks.gan import build_discriminator, build_generator

SHAPES = [(1, 28, 28), (3, 32, 32), (1, 8, 8), (2, 9, 14), (1, 4, 4), (30,)]


@pytest.mark.parametrize("shape", SHAPES)
def test_codes_become_samples_and_samples_logits(shape: tuple[int, ...]) -> None:
    codes = torch.randn(5, 12, generator=torch.Generator().manual_seed(0))
    made = build_generator(shape, 12, 16, 4)(codes)
    assert made.shape == (5, *shape)
    assert build_discriminator(shape, 16, 4)(made).shape == (5, 1)


def test_images_are_in_the_unit_range_and_vectors_anywhere() -> None:
    codes = 100 * torch.randn(64, 12, generator=torch.Generator().manual_seed(0))
    image = build_generator((1, 8, 8), 12, 16, 4)(codes).detach()
    assert 0.0 <= float(image.min()) <= float(image.max()) <= 1.0
    assert bool((build_generator((30,), 12, 16, 4)(codes) < 0.0).any())


def test_the_discriminators_batch_norm_keeps_no_statistics() -> None:
    network = build_discriminator((1, 8, 8), 16, 4)
    assert not list(network.buffers())
    samples = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(network.train()(samples), network.eval()(samples))
