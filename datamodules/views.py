"""The modules that draw random views of a batch, built by `datamodules.augmentations`."""

from typing import Any, Literal

import torch
from kornia.geometry.transform import warp_perspective
from torch import Tensor, nn

Padding = Literal["zeros", "border", "reflection"]
"""What lies beyond the image's edge."""


class Warp(nn.Module):
    """Composes kornia's geometric augmentations and resamples once, bilinearly."""

    def __init__(self, *steps: nn.Module, padding: Padding) -> None:
        super().__init__()
        self.steps = nn.ModuleList(steps)
        self.padding = padding

    def forward(self, images: Tensor) -> Tensor:
        """Map images (n, c, h, w) to views of the same shape."""
        matrix = torch.eye(3, dtype=images.dtype, device=images.device)
        step: Any
        for step in self.steps:
            drawn = step.forward_parameters(images.shape)
            matrix = step.get_transformation_matrix(images, drawn, step.flags) @ matrix
        size = (images.shape[-2], images.shape[-1])
        views: Tensor = warp_perspective(
            images, matrix, size, padding_mode=self.padding, align_corners=False
        )
        return views


class ImageView(nn.Sequential):
    """Steps in turn; rounding is kept from leaving [0, 1]."""

    def forward(self, images: Tensor) -> Tensor:
        """Map images (n, c, h, w) in [0, 1] to views of the same shape and range."""
        for step in self:
            images = step(images)
        return images.clamp(0.0, 1.0)


class VectorView(nn.Module):
    """Adds noise of a standard deviation, then sets a share of the features to zero."""

    def __init__(self, std: float, mask_probability: float) -> None:
        super().__init__()
        self.std = std
        self.mask_probability = mask_probability

    def forward(self, vectors: Tensor) -> Tensor:
        """Map vectors (n, d) to views of the same shape."""
        kept = torch.rand_like(vectors) >= self.mask_probability
        return (vectors + self.std * torch.randn_like(vectors)) * kept
