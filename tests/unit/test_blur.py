"""The blur of digits has the standard deviation that is asked for."""

import math

import kornia.augmentation as kornia
import pytest
import torch
from torch import Tensor

from coterie.commands.compose import compose
from coterie.networks.views import seeded_view
from datamodules.augmentations import DigitsAugmentation, NaturalAugmentation

STILL = {"crop": (1.0, 1.0), "aspect": (1.0, 1.0), "blur_probability": 1.0}
UNMOVED = {**STILL, "rotation": 0.0, "translation": 0.0, "scale": (1.0, 1.0), "shear": 0.0}


def impulse(config: DigitsAugmentation | NaturalAugmentation, side: int) -> Tensor:
    """The response (side,) along the width to one white pixel in the middle, summed over height."""
    image = torch.zeros(1, 1, side, side)
    image[..., side // 2, side // 2] = 1.0
    return seeded_view(config.build((1, side, side)), image, 0)[0, 0].double().sum(dim=0)


def deviation(response: Tensor) -> float:
    offsets = torch.arange(len(response)) - len(response) // 2
    return math.sqrt(float((response * offsets**2).sum() / response.sum()))


def digits(sigma: float, side: int) -> DigitsAugmentation:
    return DigitsAugmentation(**UNMOVED, blur_sigma=(sigma / side, sigma / side))


@pytest.mark.parametrize(("sigma", "side"), [(2.0, 28), (1.0, 28), (2.0, 32), (0.8, 8), (1.0, 8)])
def test_digits_are_blurred_as_much_as_asked(sigma: float, side: int) -> None:
    response = impulse(digits(sigma, side), side)
    assert float(response.sum()) == pytest.approx(1.0, abs=1e-4)
    assert deviation(response) == pytest.approx(sigma, rel=0.05)


@pytest.mark.parametrize("side", [8, 16, 28, 32])
def test_the_usual_blur_is_cut_off_nowhere(side: int) -> None:
    sigma = DigitsAugmentation().blur_sigma[1] * side
    response = impulse(digits(sigma, side), side)
    offsets = (torch.arange(side) - side // 2).double()
    whole = torch.exp(-(offsets**2) / (2 * sigma**2))  # the Gaussian at all pixels of the row
    torch.testing.assert_close(response, whole / whole.sum(), rtol=0, atol=0.005)
    assert deviation(response) == pytest.approx(deviation(whole), rel=0.05)


def test_ccfc_is_blurred_by_up_to_two_pixels() -> None:
    config = compose("experiment=ccfc_mnist").augmentation
    strongest = (config.blur_sigma[1],) * 2
    still = DigitsAugmentation(**UNMOVED, blur_sigma=strongest)
    assert deviation(impulse(still, 28)) == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize(("share", "kernel"), [(0.035, 3), (0.125, 7), (1.0, 15), (50.0, 15)])
def test_the_kernel_reaches_no_further_than_the_side(share: float, kernel: int) -> None:
    view = DigitsAugmentation(**UNMOVED, blur_sigma=(share, share)).build((1, 8, 12))
    (blur,) = [part for part in view.modules() if isinstance(part, kornia.RandomGaussianBlur)]
    assert blur.flags["kernel_size"] == (kernel, kernel)
    assert torch.isfinite(seeded_view(view, torch.rand(2, 1, 8, 12), 0)).all()


def test_photographs_keep_simclrs_kernel() -> None:
    plain = {**STILL, "flip_probability": 0.0, "jitter_probability": 0.0, "grey_probability": 0.0}
    config = NaturalAugmentation(**plain, blur_sigma=(2.0, 2.0))
    assert deviation(impulse(config, 32)) == pytest.approx(0.8, abs=0.01)
