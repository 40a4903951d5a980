"""Gradient orientations of images: a fixed encoder with the same bits on every machine.

After Dalal and Triggs, "Histograms of Oriented Gradients for Human Detection" (2005), in integers:
an image is cut into cells, and each cell has the strengths of eight directions of its gradients. A
gradient (x, y) is written as a part along the nearer axis, ||x| − |y||, and a part along the nearer
diagonal, √2 min(|x|, |y|), which needs no angle. All sums are of integers that floats hold exactly,
so a sample's bits depend on neither batch, threads nor processor.
"""

from typing import Annotated

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from coterie.clustering.lattice import UNIT
from coterie.networks.encoders import Encoder, EncoderConfig, image_shape

DIRECTIONS = 8
_STRAIGHT, _DIAGONAL = 16.0, 23.0  # 23/16 ≈ √2
_FINE = 16.0
"""Steps of a cell's strength, before normalisation, per unit."""


class Orientations(EncoderConfig):
    """Strengths of eight gradient directions in each of `cells` × `cells` parts of an image.

    The representation has 8 · cells² values: square roots of the strengths, normalised to unit
    length. It suits aligned images: digits, glyphs, garments, scans. Nothing is trained or sent.
    """

    cells: Annotated[int, Field(ge=1, le=64)] = 5
    """Cells along each side; at most half as many as there are pixels."""

    def build(self, shape: tuple[int, ...]) -> Encoder:
        """See `EncoderConfig.build`."""
        _, height, width = image_shape("Orientations", shape, smallest=2 * self.cells)
        return Encoder(CellOrientations(height, width, self.cells), DIRECTIONS * self.cells**2)


class CellOrientations(nn.Module):
    """The orientation histograms of images of one size."""

    rows: Tensor
    columns: Tensor

    def __init__(self, height: int, width: int, cells: int) -> None:
        super().__init__()
        self.register_buffer("rows", _windows(height, cells), persistent=False)
        self.register_buffer("columns", _windows(width, cells), persistent=False)

    def forward(self, images: Float[Tensor, "n c h w"]) -> Float[Tensor, "n d"]:
        """Map images in [0, 1] to unit vectors whose entries are multiples of 2^-12."""
        grey = (images.float() * 255.0).round()
        across = functional.pad(grey, (1, 1, 0, 0), mode="replicate").diff(dim=3)
        down = functional.pad(grey, (0, 0, 1, 1), mode="replicate").diff(dim=2)
        maps = directions(across[..., 1:] + across[..., :-1], down[..., 1:, :] + down[..., :-1, :])
        lines = maps.sum(dim=2) @ self.columns.float().T  # of a module in float64 too
        strengths = (self.rows.double() @ lines.double()).flatten(1)
        fine = (strengths.sqrt() * _FINE).round()
        norms = fine.square().sum(dim=1, keepdim=True).sqrt().clamp_min(1.0)
        return (fine / norms * UNIT).round().div(UNIT).to(images.dtype)


def directions(
    x: Float[Tensor, "n c h w"], y: Float[Tensor, "n c h w"]
) -> Float[Tensor, "n 8 c h w"]:
    """Return each gradient's (x, y) components along eight directions, in sixteenths."""
    east, west, south, north = (part.clamp_min(0.0) for part in (x, -x, y, -y))
    across, along = x.abs(), y.abs()
    straight = [
        (part - other).clamp_min(0.0)
        for part, other in ((east, along), (west, along), (south, across), (north, across))
    ]
    diagonal = [
        torch.minimum(one, other)
        for one, other in ((east, south), (west, south), (west, north), (east, north))
    ]
    return torch.stack(
        [_STRAIGHT * part for part in straight] + [_DIAGONAL * part for part in diagonal], dim=1
    )


def _windows(side: int, cells: int) -> Float[Tensor, "cells side"]:
    """Return which pixels of a side each cell covers, as in adaptive average pooling."""
    pixel = torch.arange(side)
    first = torch.tensor([(cell * side) // cells for cell in range(cells)])
    last = torch.tensor([-(-((cell + 1) * side) // cells) for cell in range(cells)])
    return ((pixel >= first[:, None]) & (pixel < last[:, None])).float()
