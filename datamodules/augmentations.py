"""Augmentations: random views of whole batches, drawn per sample, on the batch's device.

Geometric steps are composed into one transformation (`coterie.datamodules.warps`).
Randomness comes from torch's global generators; `coterie.networks.views.seeded_view` seeds them.
"""

from abc import ABC, abstractmethod
from math import ceil
from typing import Annotated

import kornia.augmentation as kornia
import torch
from pydantic import AfterValidator, Field
from torch import Tensor, nn

from coterie.config.component import Component
from coterie.datamodules.colours import ColourJitter
from coterie.datamodules.warps import Interpolation, Padding, Warp
from coterie.errors import ConfigError


def _ordered(bounds: tuple[float, float]) -> tuple[float, float]:
    low, high = bounds
    if low > high:
        raise ValueError(f"[{low}, {high}] is not a range; put the smaller bound first")
    return bounds


Probability = Annotated[float, Field(ge=0.0, le=1.0)]
Share = Annotated[float, Field(gt=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
Area = Annotated[tuple[Share, Share], Field(strict=False), AfterValidator(_ordered)]
"""Bounds of a crop's share of the image's area; a list in YAML."""
Factor = Annotated[tuple[Positive, Positive], Field(strict=False), AfterValidator(_ordered)]
"""Bounds of a positive factor; a list in YAML."""


class AugmentationConfig(Component, ABC):
    """Base of the configs of augmentations."""

    @abstractmethod
    def build(self, shape: tuple[int, ...]) -> nn.Module:
        """Build a module that maps a batch of samples to a random view of each.

        Args:
            shape: The shape of one sample: (channels, height, width) or (features,).

        Raises:
            ConfigError: If the augmentation does not fit samples of this shape.
        """


class NoAugmentation(AugmentationConfig):
    """Views equal to the samples."""

    def build(self, shape: tuple[int, ...]) -> nn.Module:
        """See `AugmentationConfig.build`."""
        return nn.Identity()


class DigitsAugmentation(AugmentationConfig):
    """For digits and glyphs on a plain background: crop, small affine, blur; never a flip."""

    crop: Area = (0.7, 1.0)
    """Random resized crop: kept share of the area."""
    aspect: Factor = (0.9, 1.1)
    """Aspect ratio of the crop."""
    rotation: Annotated[float, Field(ge=0.0, le=180.0)] = 15.0
    """Largest rotation, in degrees, in either direction."""
    translation: Probability = 0.1
    """Largest shift, as a share of the side, in either direction."""
    scale: Factor = (0.9, 1.1)
    """Scaling factor."""
    shear: Annotated[float, Field(ge=0.0, lt=90.0)] = 5.0
    """Largest horizontal shear, in degrees, in either direction."""
    padding: Padding = "zeros"
    """How to fill pixels beyond the edge; "zeros" suits a black background."""
    interpolation: Interpolation = "bilinear"
    """`bilinear` reads each pixel once, for crop and affine step together; `nearest` resizes the
    crop bilinearly and turns the result by nearest neighbours, as torchvision does by default."""
    blur_probability: Probability = 0.5
    """Share of the views that are blurred."""
    blur_sigma: Factor = (0.005, 0.035)
    """Standard deviation of the blur, as a share of the side, so that 8×8 images stay legible. The
    kernel spans three deviations on each side; below half a pixel there is almost no blur."""

    def build(self, shape: tuple[int, ...]) -> nn.Module:
        """See `AugmentationConfig.build`."""
        size = _image_size("DigitsAugmentation", shape)
        crop = _resized_crop(size, self.crop, self.aspect)
        shift = (self.translation, self.translation)
        affine = kornia.RandomAffine(self.rotation, shift, self.scale, self.shear, p=1.0)
        if self.interpolation == "nearest":
            turn = Warp(affine, padding=self.padding, interpolation="nearest")
            warps = [Warp(crop, padding="border"), turn]
        else:
            warps = [Warp(crop, affine, padding=self.padding)]
        low, high = (share * min(size) for share in self.blur_sigma)
        kernel = _whole_kernel(high, min(size))
        return ImageView(*warps, *_blur(kernel, self.blur_probability, (low, high)))


class NaturalAugmentation(AugmentationConfig):
    """For photographs, as in CC and SimCLR: crop, flip, colour jitter, grey and blur.

    Colour jitter and grey apply to RGB images only.
    """

    crop: Area = (0.2, 1.0)
    """Random resized crop: kept share of the area."""
    aspect: Factor = (0.75, 4 / 3)
    """Aspect ratio of the crop."""
    flip_probability: Probability = 0.5
    """Share of the views that are mirrored horizontally."""
    jitter_strength: Annotated[float, Field(ge=0.0, le=2.0)] = 0.5
    """Factor of 0.8 for brightness and contrast, 0.2 for hue; 1 for larger images."""
    saturation: Annotated[float, Field(ge=0.0, le=1.0)] = 0.8
    """Saturation jitter at strength 1; 0.4 in BYOL."""
    jitter_probability: Probability = 0.8
    """Share of the views whose colours are jittered."""
    grey_probability: Probability = 0.2
    """Share of the views that are converted to grey."""
    blur_probability: Probability = 0.0
    """Share of the views that are blurred; 0.5 for ImageNet."""
    blur_sigma: Factor = (0.1, 2.0)
    """Standard deviation of the blur, in pixels, before truncation: the kernel is SimCLR's, a tenth
    of the side wide and at least 3 pixels, so that at 32 pixels 2.0 becomes 0.8."""

    def build(self, shape: tuple[int, ...]) -> nn.Module:
        """See `AugmentationConfig.build`."""
        size = _image_size("NaturalAugmentation", shape)
        steps: list[nn.Module] = [
            # A crop lies within the image; "border" only keeps its edge from fading.
            Warp(
                _resized_crop(size, self.crop, self.aspect),
                kornia.RandomHorizontalFlip(p=self.flip_probability),
                padding="border",
            )
        ]
        # kornia computes a step even at probability 0, hence the conditions.
        if shape[0] == 3 and self.jitter_probability > 0.0:
            level, hue = 0.8 * self.jitter_strength, 0.2 * self.jitter_strength
            grey = self.saturation * self.jitter_strength
            steps.append(ColourJitter(level, level, grey, hue, p=self.jitter_probability))
        if shape[0] == 3 and self.grey_probability > 0.0:
            steps.append(kornia.RandomGrayscale(p=self.grey_probability))
        kernel = max(3, min(size) // 10 | 1)
        return ImageView(*steps, *_blur(kernel, self.blur_probability, self.blur_sigma))


class RotationPerspective(AugmentationConfig):
    """Random rotation and perspective: CF-CL's views of USPS."""

    rotation: Annotated[float, Field(ge=0.0, le=180.0)] = 20.0
    """Largest rotation, in degrees, in either direction."""
    distortion: Probability = 0.3
    """Largest inward shift of the corners, as a share of half the side."""
    padding: Padding = "zeros"
    """How to fill pixels beyond the edge; "zeros" suits a black background."""

    def build(self, shape: tuple[int, ...]) -> nn.Module:
        """See `AugmentationConfig.build`."""
        _image_size("RotationPerspective", shape)
        return ImageView(
            Warp(
                kornia.RandomRotation(self.rotation, p=1.0),
                kornia.RandomPerspective(self.distortion, p=1.0),
                padding=self.padding,
            )
        )


class VectorNoise(AugmentationConfig):
    """For feature vectors: add Gaussian noise, then set some features to zero."""

    std: Annotated[float, Field(ge=0.0)] = 0.1
    """Standard deviation of the noise, in units of the features."""
    mask_probability: Probability = 0.1
    """Share of the features that are set to zero, drawn for each sample."""

    def build(self, shape: tuple[int, ...]) -> nn.Module:
        """See `AugmentationConfig.build`."""
        if len(shape) != 1:
            raise ConfigError(
                f"augmentation=VectorNoise: it takes feature vectors, not samples of shape {shape};"
                " choose an augmentation for images, such as NaturalAugmentation."
            )
        return VectorView(self.std, self.mask_probability)


def _image_size(name: str, shape: tuple[int, ...]) -> tuple[int, int]:
    if len(shape) != 3:
        raise ConfigError(
            f"augmentation={name}: it takes images (channels, height, width), not samples of shape "
            f"{shape}; choose coterie.datamodules.augmentations:VectorNoise for feature vectors."
        )
    return shape[1], shape[2]


def _resized_crop(
    size: tuple[int, int], area: tuple[float, float], aspect: tuple[float, float]
) -> nn.Module:
    # "slice" and unaligned corners give torchvision's resize; kornia's defaults would stretch pixel
    # centres. `Warp` resamples, so nothing is sliced.
    crop: nn.Module = kornia.RandomResizedCrop(
        size, area, aspect, cropping_mode="slice", align_corners=False
    )
    return crop


def _whole_kernel(sigma: float, side: int) -> int:
    """Return an odd kernel width for three standard deviations, limited by the image's side."""
    return 2 * max(1, min(ceil(3.0 * sigma), side - 1)) + 1


def _blur(kernel: int, probability: float, sigma: tuple[float, float]) -> list[nn.Module]:
    if probability == 0.0:
        return []
    # One small two-dimensional convolution is faster than two one-dimensional ones.
    return [
        kornia.RandomGaussianBlur(
            (kernel, kernel), sigma, p=probability, separable=kernel > 5, border_type="replicate"
        )
    ]


class ImageView(nn.Sequential):
    """Composition of augmentations, with the views clamped to [0, 1]."""

    def forward(self, images: Tensor) -> Tensor:
        """Map images (n, c, h, w) in [0, 1] to views of the same shape and range."""
        for step in self:
            images = step(images)
        return images.clamp(0.0, 1.0)


class VectorView(nn.Module):
    """Gaussian noise on vectors, with a random share of their features set to zero."""

    def __init__(self, std: float, mask_probability: float) -> None:
        super().__init__()
        self.std = std
        self.mask_probability = mask_probability

    def forward(self, vectors: Tensor) -> Tensor:
        """Map vectors (n, d) to views of the same shape."""
        kept = torch.rand_like(vectors) >= self.mask_probability
        return (vectors + self.std * torch.randn_like(vectors)) * kept
