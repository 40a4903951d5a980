"""Augmentations: range, parity with torchvision, what is and is not drawn, seeds, configs."""

import math

import kornia.augmentation as kornia
import pytest
import torch
from kornia import enhance
from pydantic import ValidationError
from torch import Tensor, nn
from torchvision.transforms import functional

from coterie.commands.compose import compose
from coterie.config.component import parse_component
from coterie.datamodules.augmentations import (
    AugmentationConfig,
    DigitsAugmentation,
    NaturalAugmentation,
    NoAugmentation,
    RotationPerspective,
    VectorNoise,
)
from coterie.datamodules.auto_augmentation import Auto
from coterie.datamodules.colours import shift_hue
from coterie.datamodules.warps import Warp
from coterie.errors import ConfigError
from coterie.networks.views import seeded_view

IMAGE_KINDS = [
    DigitsAugmentation(),
    DigitsAugmentation(padding="border", blur_probability=1.0),
    DigitsAugmentation(interpolation="nearest"),
    NaturalAugmentation(jitter_strength=1.0, blur_probability=0.5),
    RotationPerspective(),
]
STILL = {"crop": (1.0, 1.0), "aspect": (1.0, 1.0), "blur_probability": 0.0}
PLAIN = {**STILL, "flip_probability": 0.0, "jitter_probability": 0.0, "grey_probability": 0.0}


def noise(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0))


def step(module: nn.Module, kind: type[nn.Module]) -> nn.Module:
    (found,) = [m for m in module.modules() if isinstance(m, kind)]
    return found


@pytest.mark.parametrize("config", IMAGE_KINDS)
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 24, 40)])
def test_views_keep_shape_and_range(config: AugmentationConfig, shape: tuple[int, ...]) -> None:
    images = noise(32, *shape).round()  # the extremes of the range, where overshoot would show
    views = seeded_view(config.build(shape), images, 0)
    assert views.shape == images.shape
    assert views.dtype == torch.float32
    assert views.min() >= 0
    assert views.max() <= 1
    assert (views != images).flatten(1).any(dim=1).double().mean() > 0.9


@pytest.mark.parametrize("config", [*IMAGE_KINDS, VectorNoise()])
def test_each_sample_draws_its_own(config: AugmentationConfig) -> None:
    shape = (16,) if isinstance(config, VectorNoise) else (1, 16, 16)
    views = seeded_view(config.build(shape), noise(1, *shape).repeat(8, *[1] * len(shape)), 0)
    distances = torch.cdist(views.flatten(1), views.flatten(1)).fill_diagonal_(1.0)
    assert distances.min() > 1e-3


@pytest.mark.parametrize(
    "config",
    [
        NoAugmentation(),
        NaturalAugmentation(**PLAIN),
        RotationPerspective(rotation=0.0, distortion=0.0),
        DigitsAugmentation(**STILL, rotation=0.0, translation=0.0, scale=(1.0, 1.0), shear=0.0),
    ],
)
def test_nothing_drawn_changes_nothing(config: AugmentationConfig) -> None:
    images = noise(4, 3, 16, 16)
    torch.testing.assert_close(config.build((3, 16, 16))(images), images, rtol=0, atol=1e-4)


def test_crop_is_torchvisions() -> None:
    images = noise(16, 3, 32, 32)
    augment = NaturalAugmentation(**{**PLAIN, "crop": (0.2, 1.0), "aspect": (0.75, 4 / 3)})
    module = augment.build((3, 32, 32))
    views = seeded_view(module, images, 3)
    torch.manual_seed(3)
    boxes = step(module, kornia.RandomResizedCrop).forward_parameters(images.shape)["src"].long()
    for image, view, box in zip(images, views, boxes.tolist(), strict=True):
        (left, top), _, (right, bottom), _ = box
        size = (bottom - top + 1, right - left + 1)
        assert 0.15 < math.prod(size) / 32**2 <= 1
        expected = functional.resized_crop(image, top, left, *size, [32, 32], antialias=False)
        # At its edge torchvision repeats the crop's last pixel; the warp sees the one beyond.
        inner = (slice(None), slice(3, -3), slice(3, -3))
        torch.testing.assert_close(view[inner], expected[inner], rtol=0, atol=1e-4)


def test_nearest_is_torchvisions_rotation_of_the_bilinear_crop() -> None:
    images = noise(8, 1, 28, 28)
    config = DigitsAugmentation(
        crop=(0.5, 1.0),
        rotation=15.0,
        translation=0.0,
        scale=(1.0, 1.0),
        shear=0.0,
        blur_probability=0.0,
        interpolation="nearest",
    )
    module = config.build((1, 28, 28))
    views = seeded_view(module, images, 3)
    torch.manual_seed(3)
    crops = Warp(step(module, kornia.RandomResizedCrop), padding="border")(images)
    angles = step(module, kornia.RandomAffine).forward_parameters(images.shape)["angle"]
    assert len(set(angles.tolist())) == 8
    for crop, angle, view in zip(crops, angles.tolist(), views, strict=True):
        expected = functional.rotate(crop, -angle)  # kornia's affine step turns clockwise
        assert (expected == view).float().mean() > 0.99  # rounding may decide a tie otherwise


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_an_affine_warp_is_that_of_a_perspective(padding: str) -> None:
    images = noise(32, 3, 24, 40)
    affine = kornia.RandomAffine(40.0, (0.2, 0.2), (0.7, 1.3), 20.0, p=1.0)
    still = kornia.RandomPerspective(0.0, p=1.0)
    one, other = Warp(affine, padding=padding), Warp(affine, still, padding=padding)
    assert (one.affine, other.affine) == (True, False)
    views = seeded_view(one, images, 3)
    torch.testing.assert_close(views, seeded_view(other, images, 3), rtol=0, atol=1e-4)


def test_steps_are_composed_in_order() -> None:
    images = noise(4, 1, 9, 9)
    flip, turn = kornia.RandomHorizontalFlip(p=1.0), kornia.RandomRotation((90.0, 90.0), p=1.0)
    flipped = images.flip(-1)
    found = Warp(flip, turn, padding="zeros")(images)
    torch.testing.assert_close(found, flipped.rot90(1, (2, 3)), rtol=0, atol=1e-4)
    found = Warp(turn, flip, padding="zeros")(images)
    torch.testing.assert_close(found, images.rot90(1, (2, 3)).flip(-1), rtol=0, atol=1e-4)


def test_digits_are_never_mirrored_and_photographs_half_of_the_time() -> None:
    images = torch.zeros(400, 1, 16, 16)
    images[..., :8] = 1.0

    def mirrored(config: AugmentationConfig) -> float:
        views = seeded_view(config.build((1, 16, 16)), images, 0)
        left, right = views[..., :8].mean((1, 2, 3)), views[..., 8:].mean((1, 2, 3))
        return (right > left).double().mean().item()

    assert mirrored(DigitsAugmentation(crop=(0.9, 1.0))) == 0.0
    assert mirrored(NaturalAugmentation(crop=(0.9, 1.0))) == pytest.approx(0.5, abs=0.1)
    always = NaturalAugmentation(**{**PLAIN, "flip_probability": 1.0})
    torch.testing.assert_close(
        always.build((1, 16, 16))(images), images.flip(-1), rtol=0, atol=1e-4
    )


def test_padding() -> None:
    white = torch.ones(64, 1, 16, 16)
    for padding, darkest in (("zeros", 0.0), ("border", 1.0), ("reflection", 1.0)):
        for config in (DigitsAugmentation(padding=padding), RotationPerspective(padding=padding)):
            views = seeded_view(config.build((1, 16, 16)), white, 0)
            assert views.min().item() == pytest.approx(darkest, abs=1e-4)
    views = seeded_view(NaturalAugmentation().build((1, 16, 16)), white, 0)
    assert views.min().item() == pytest.approx(1.0, abs=1e-4)


def test_hue_is_kornias() -> None:
    images = torch.cat((noise(30, 3, 16, 16), noise(30, 3, 16, 16).mul(3).floor() / 2))
    images[0], images[1], images[2, 1:] = 0.0, 0.5, 0.0
    turns = torch.linspace(-0.5, 0.5, len(images))
    expected = enhance.adjust_hue(images, 2 * math.pi * turns)
    torch.testing.assert_close(shift_hue(images, turns), expected, rtol=0, atol=5e-6)
    assert torch.equal(shift_hue(images, torch.zeros(60))[:2], images[:2])


def test_colour_jitter_is_torchvisions() -> None:
    images = noise(6, 3, 8, 8)
    augment = NaturalAugmentation(**{**PLAIN, "jitter_probability": 1.0, "jitter_strength": 1.0})
    module = augment.build((3, 8, 8))
    views = seeded_view(module, images, 5)
    drawn = step(module, kornia.ColorJitter)._params
    names = ("brightness", "contrast", "saturation", "hue")
    for i in range(len(images)):
        image = images[i]
        for index in drawn["order"].tolist():
            factor = drawn[f"{names[index]}_factor"][i].item()
            low, high = (-0.2, 0.2) if names[index] == "hue" else (0.2, 1.8)
            assert low <= factor <= high
            image = getattr(functional, f"adjust_{names[index]}")(image, factor)
        torch.testing.assert_close(views[i], image, rtol=0, atol=2e-3)


def test_grey_is_luminance_and_colour_steps_leave_grey_images_alone() -> None:
    images = noise(4, 3, 8, 8)
    grey = NaturalAugmentation(**{**PLAIN, "grey_probability": 1.0})
    expected = (images * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True)
    views = grey.build((3, 8, 8))(images)
    torch.testing.assert_close(views, expected.expand_as(images), rtol=0, atol=1e-4)
    coloured = NaturalAugmentation(**{**PLAIN, "jitter_probability": 1.0, "grey_probability": 1.0})
    one = images[:, :1]
    torch.testing.assert_close(coloured.build((1, 8, 8))(one), one, rtol=0, atol=1e-4)


def test_blur_scales_with_the_image() -> None:
    for side, kernel in ((8, 3), (28, 3), (32, 3), (96, 9), (224, 23)):
        config = NaturalAugmentation(**{**PLAIN, "blur_probability": 1.0})
        blur = step(config.build((1, side, side)), kornia.RandomGaussianBlur)
        assert blur.flags["kernel_size"] == (kernel, kernel)
    images = noise(64, 1, 28, 28)
    half = NaturalAugmentation(**{**PLAIN, "blur_probability": 0.5, "blur_sigma": (1.0, 1.0)})
    views = seeded_view(half.build((1, 28, 28)), images, 0)
    blurred = (views - images).abs().amax((1, 2, 3)) > 0.01
    assert 20 <= blurred.sum() <= 44
    taps = torch.tensor([math.exp(-0.5), 1.0, math.exp(-0.5)])
    kernel2d = (taps[:, None] * taps / taps.sum() ** 2)[None, None]
    expected = torch.nn.functional.conv2d(images[blurred], kernel2d)
    torch.testing.assert_close(views[blurred][..., 1:-1, 1:-1], expected, rtol=0, atol=1e-4)


def test_vector_noise() -> None:
    vectors = torch.full((200, 500), 2.0)
    views = seeded_view(VectorNoise(std=0.3, mask_probability=0.25).build((500,)), vectors, 0)
    masked = views == 0
    assert masked.double().mean().item() == pytest.approx(0.25, abs=0.01)
    assert masked.any(1).all()
    assert not masked.all(0).any()
    assert views[~masked].mean().item() == pytest.approx(2.0, abs=0.01)
    assert views[~masked].std().item() == pytest.approx(0.3, abs=0.01)
    still = VectorNoise(std=0.0, mask_probability=0.0)
    assert torch.equal(still.build((500,))(vectors), vectors)


def assert_seeded(config: AugmentationConfig, device: str) -> None:
    shape = (16,) if isinstance(config, VectorNoise) else (3, 16, 16)
    images, augment = noise(16, *shape).to(device), config.build(shape)
    first, other = seeded_view(augment, images, 7), seeded_view(augment, images, 8)
    on_cpu = torch.get_rng_state()
    on_device = torch.cuda.get_rng_state() if device == "cuda" else on_cpu
    torch.rand(3)
    torch.rand(3, device=device)
    torch.set_rng_state(on_cpu)
    if device == "cuda":
        torch.cuda.set_rng_state(on_device)
    assert torch.equal(seeded_view(augment, images, 7), first)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), on_cpu)
    if device == "cuda":
        assert torch.equal(torch.cuda.get_rng_state(), on_device)


@pytest.mark.parametrize("config", [*IMAGE_KINDS, VectorNoise()])
def test_seeded_view(config: AugmentationConfig) -> None:
    assert_seeded(config, "cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("config", [*IMAGE_KINDS, VectorNoise()])
def test_seeded_view_on_cuda(config: AugmentationConfig) -> None:
    assert_seeded(config, "cuda")


def test_refuses_shapes() -> None:
    for config in IMAGE_KINDS:
        with pytest.raises(ConfigError, match=r"images.*shape \(64,\).*VectorNoise"):
            config.build((64,))
    with pytest.raises(ConfigError, match=r"feature vectors.*\(1, 8, 8\)"):
        VectorNoise().build((1, 8, 8))


def test_sections_take_yaml_lists_and_refuse_wrong_values() -> None:
    section = {"target": "coterie.datamodules.augmentations:DigitsAugmentation", "crop": [0.5, 1]}
    assert parse_component(section) == DigitsAugmentation(crop=(0.5, 1.0))
    wrong = [
        {"crop": [0.9, 0.2]},
        {"crop": [0.0, 1.0]},
        {"crop": [0.5, 1.1]},
        {"crop": [0.5]},
        {"crop": [True, 1.0]},
        {"crop": ["0.5", 1.0]},
        {"blur_probability": 1.5},
        {"rotation": -1.0},
        {"padding": "black"},
        {"flip_probability": 0.5},
    ]
    for values in wrong:
        with pytest.raises(ValidationError):
            parse_component({**section, **values})


BLURRED = {"crop": (1.0, 1.0), "aspect": (1.0, 1.0), "blur_probability": 1.0}
UNMOVED = {**BLURRED, "rotation": 0.0, "translation": 0.0, "scale": (1.0, 1.0), "shear": 0.0}


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
    plain = {**BLURRED, "flip_probability": 0.0, "jitter_probability": 0.0, "grey_probability": 0.0}
    config = NaturalAugmentation(**plain, blur_sigma=(2.0, 2.0))
    assert deviation(impulse(config, 32)) == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize(
    ("shape", "choice"),
    [
        ((7,), VectorNoise()),
        ((1, 28, 28), DigitsAugmentation()),
        ((1, 64, 64), NaturalAugmentation()),
        ((3, 32, 32), NaturalAugmentation()),
    ],
)
def test_the_automatic_views_fit_the_samples(shape, choice) -> None:
    assert Auto().choice(shape) == choice
    assert Auto().build(shape)(torch.rand(2, *shape)).shape == (2, *shape)
