"""Rotations of images by multiples of 90°, which Orchestra and RotPred predict.

Gidaris et al., "Unsupervised Representation Learning by Predicting Image Rotations" (ICLR 2018).
"""

import torch
from torch import Tensor

from coterie.contract import derive_seed
from coterie.errors import ConfigError

TURNS = 4
"""Rotations by 0°, 90°, 180° and 270°."""


def drawn_turns(count: int, seed: int) -> Tensor:
    """Draw a rotation for each image in quarter turns, int64 (count,), from a seed."""
    draw = torch.Generator().manual_seed(derive_seed(seed, "rotation"))
    return torch.randint(TURNS, (count,), generator=draw)


def rotated(images: Tensor, turns: Tensor) -> Tensor:
    """Rotate image i of (n, channels, side, side) by turns[i] · 90°; `turns` is int64 (n,)."""
    every = torch.stack([images.rot90(turn, dims=(2, 3)) for turn in range(TURNS)])
    return every[turns, torch.arange(len(images), device=images.device)]


def check_rotatable(shape: tuple[int, ...], method: str) -> None:
    """Raise a ConfigError that names the method unless samples of this shape are square images."""
    if len(shape) != 3 or shape[1] != shape[2]:
        raise ConfigError(
            f"method={method}: samples of shape {shape} cannot be rotated by 90°; "
            "choose data of square images."
        )
