"""Fixed warps of images in integers, the same for every sample and exact on every machine.

A method that must not depend on how samples are grouped cannot draw a view per sample. It applies
the same few warps to all of them: a pair for each parameter of an affine map, one to either side.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64, Int32, Int64, UInt8
from numpy.typing import NDArray
from torch import Tensor

_WEIGHT = 2**8
"""The four weights of a bilinear interpolation sum to this."""

Affine = Float64[np.ndarray, "2 3"]
"""A map from output to input coordinates, each in [−1, 1]."""


@dataclass(frozen=True)
class WarpSizes:
    """Step size of each parameter of an affine warp; 0 leaves the parameter out.

    Attributes:
        rotation: Angle, in degrees.
        scale: Relative change of size, of each axis on its own.
        shear: Horizontal shift per unit of height.
        translation: Shift along each axis, as a share of the side.
    """

    rotation: float
    scale: float
    shear: float
    translation: float

    def pairs(self) -> list[tuple[Affine, Affine]]:
        """Return, for each parameter, the two maps that move it up and down by its size."""
        sizes = {
            "rotation": self.rotation,
            "wide": self.scale,
            "high": self.scale,
            "shear": self.shear,
            "right": 2 * self.translation,
            "down": 2 * self.translation,
        }
        return [(_affine(name, +d), _affine(name, -d)) for name, d in sizes.items() if d > 0]


def _affine(parameter: str, size: float) -> Affine:
    """Return the identity with one parameter moved."""
    if parameter == "rotation":
        angle = np.deg2rad(size)
        return np.array([[np.cos(angle), -np.sin(angle), 0.0], [np.sin(angle), np.cos(angle), 0.0]])
    places = {"wide": (0, 0), "high": (1, 1), "shear": (0, 1), "right": (0, 2), "down": (1, 2)}
    found = np.eye(2, 3)
    found[places[parameter]] += size
    return found


class Warp:
    """One affine warp of images of one size, by bilinear interpolation; outside is black.

    Args:
        affine: Map from output to input coordinates in [−1, 1].
    """

    def __init__(self, affine: Affine, height: int, width: int) -> None:
        x, y = np.meshgrid(_centres(width), _centres(height))
        grid = np.stack([x.ravel(), y.ravel(), np.ones(height * width)])
        across, down = affine @ grid
        column, row = ((across + 1) * width - 1) / 2, ((down + 1) * height - 1) / 2
        left, top = np.floor(column), np.floor(row)
        right = np.round((column - left) * 16)  # sixteenths: products of two are of 256
        below = np.round((row - top) * 16)
        corners = [
            (top, left, (16 - below) * (16 - right)),
            (top, left + 1, (16 - below) * right),
            (top + 1, left, below * (16 - right)),
            (top + 1, left + 1, below * right),
        ]
        self._corners = [_corner(*corner, height, width) for corner in corners]

    def __call__(self, images: UInt8[Tensor, "n c h w"]) -> UInt8[Tensor, "n c h w"]:
        """Warp a batch of images."""
        pixels = images.flatten(2).permute(2, 0, 1).int()  # pixels first: whole rows are copied
        total = torch.full_like(pixels, _WEIGHT // 2)
        for places, weights in self._corners:
            total.addcmul_(pixels.index_select(0, places), weights[:, None, None])
        return (total >> 8).to(torch.uint8).permute(1, 2, 0).reshape(images.shape)


def warps_of(
    pairs: Iterable[tuple[Affine, Affine]], shape: Sequence[int]
) -> list[tuple[Warp, Warp]]:
    """Return the warps of these pairs of maps, for images of this shape."""
    return [(Warp(up, *shape[-2:]), Warp(down, *shape[-2:])) for up, down in pairs]


def _centres(side: int) -> Float64[np.ndarray, "side"]:
    return (2 * np.arange(side) + 1) / side - 1


def _corner(
    row: NDArray[np.float64],
    column: NDArray[np.float64],
    weight: NDArray[np.float64],
    height: int,
    width: int,
) -> tuple[Int64[Tensor, "hw"], Int32[Tensor, "hw"]]:
    """Return the flat position and the weight of one neighbour of each pixel; 0 outside."""
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    places = np.where(inside, row * width + column, 0).astype(np.int64)
    return torch.from_numpy(places), torch.from_numpy(np.where(inside, weight, 0).astype(np.int32))
