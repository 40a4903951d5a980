"""Colour jitter of batches: kornia's, with a hue shift that takes a tenth of the time."""

from typing import Any

import kornia.augmentation as kornia
import torch
from kornia import enhance
from torch import Tensor


class ColourJitter(kornia.ColorJitter):  # type: ignore[misc]  # kornia has no types
    """Brightness, contrast, saturation and hue, in one random order per batch.

    Draws and steps are kornia's (which are torchvision's); only the hue is computed here.
    """

    def apply_transform(
        self,
        input: Tensor,  # noqa: A002 - kornia's name
        params: dict[str, Tensor],
        flags: dict[str, Any],
        transform: Tensor | None = None,
    ) -> Tensor:
        """Map images (n, 3, h, w) in [0, 1] to jittered images by the drawn factors."""
        steps = (
            (enhance.adjust_brightness_accumulative, "brightness_factor"),
            (enhance.adjust_contrast_with_mean_subtraction, "contrast_factor"),
            (enhance.adjust_saturation_with_gray_subtraction, "saturation_factor"),
            (shift_hue, "hue_factor"),
        )
        images = input
        for index in params["order"].tolist():
            step, factor = steps[index]
            images = step(images, params[factor].to(images, non_blocking=True))
        return images


def shift_hue(images: Tensor, turns: Tensor) -> Tensor:
    """Turn the hue of each image; its value and saturation (HSV) stay.

    A channel is V − S·V·w, where w is a trapezium in the hue: no conversion back is needed, and
    masks by interpolation take the place of `torch.where`, which is slow on a CPU.

    Args:
        images: Red, green and blue in [0, 1], (n, 3, h, w).
        turns: Shift of each image, in full turns, (n,).

    Returns:
        Images of the same shape and range.
    """
    red, green, blue = images.unbind(1)
    other = torch.maximum(green, blue)
    value = torch.maximum(red, other)
    chroma = value - torch.minimum(red, torch.minimum(green, blue))
    # The hue in sextants, times the chroma, where red, green or blue is largest.
    at_red = green - blue
    at_green = torch.add(blue - red, chroma, alpha=2.0)
    at_blue = torch.add(red - green, chroma, alpha=4.0)
    hue = at_blue.lerp(at_green, (green >= blue).to(images.dtype))
    hue = hue.lerp(at_red, (red >= other).to(images.dtype))
    hue = hue / chroma.clamp_min(1e-12) + 6.0 * turns.view(-1, 1, 1)
    wheel = torch.stack((hue + 5.0, hue + 3.0, hue + 1.0), dim=1).div_(6.0)
    wheel -= wheel.floor()
    share = wheel.sub_(1 / 3).abs_().mul_(-6.0).add_(2.0).clamp_(0.0, 1.0)
    return torch.addcmul(value.unsqueeze(1), share, chroma.unsqueeze(1), value=-1.0)
