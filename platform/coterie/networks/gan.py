"""The two networks of a small GAN: a generator of samples, and their discriminator.

Goodfellow et al., "Generative Adversarial Networks" (2014); layers as in InfoGAN (Chen et al.,
2016) for images of at least 8×8 pixels, linear layers for others and for vectors.
"""

import math
from collections.abc import Callable

from torch import Tensor, nn

_SMALLEST = 8
"""Pixels of a side that three convolutions with stride 2 need."""


def build_generator(shape: tuple[int, ...], codes: int, hidden: int, width: int) -> nn.Module:
    """Return a network from codes (n, codes) to samples (n, *shape): in [0, 1] if they are images.

    Args:
        shape: A sample's shape: (channels, height, width) or (features,).
        codes: Width of a code.
        hidden: Width of the linear layers.
        width: Channels of the last hidden layer of images; the one before has twice as many.
    """
    layers = _block(nn.Linear(codes, hidden, bias=False), nn.BatchNorm1d(hidden))
    if not _has_convolutions(shape):
        layers += _block(nn.Linear(hidden, hidden, bias=False), nn.BatchNorm1d(hidden))
        layers += [nn.Linear(hidden, math.prod(shape)), nn.Unflatten(1, shape)]
    else:
        channels, height, across = shape
        first = (2 * width, -(-height // 4), -(-across // 4))
        flat = math.prod(first)
        layers += _block(nn.Linear(hidden, flat, bias=False), nn.BatchNorm1d(flat))
        layers.append(nn.Unflatten(1, first))
        wider = nn.ConvTranspose2d(2 * width, width, 4, 2, 1, bias=False)
        layers += _block(wider, nn.BatchNorm2d(width))
        layers += [nn.ConvTranspose2d(width, channels, 4, 2, 1), _Crop(height, across)]
    return nn.Sequential(*layers, *([nn.Sigmoid()] if len(shape) == 3 else []))


def build_discriminator(shape: tuple[int, ...], hidden: int, width: int) -> nn.Module:
    """Return a network from samples (n, *shape) to the logits (n, 1) that they are real.

    Its batch norm takes the statistics of the batch, in eval mode too.

    Args:
        shape: A sample's shape.
        hidden: Width of the linear layers.
        width: Channels of the first convolution; each of the next two has twice as many.
    """
    layers: list[nn.Module] = []
    flat = math.prod(shape)
    if _has_convolutions(shape):
        channels, height, across = shape
        for outputs in (width, 2 * width, 4 * width):
            convolution = nn.Conv2d(channels, outputs, 4, 2, 1, bias=False)
            layers += _block(convolution, _batch_norm(nn.BatchNorm2d, outputs), leaky=True)
            channels, height, across = outputs, height // 2, across // 2
        flat = channels * height * across
    layers.append(nn.Flatten())
    inner = nn.Linear(flat, hidden, bias=False)
    layers += _block(inner, _batch_norm(nn.BatchNorm1d, hidden), leaky=True)
    return nn.Sequential(*layers, nn.Linear(hidden, 1))


class _Crop(nn.Module):
    """A crop to the first rows and columns, for images whose sides are no multiples of four."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.height, self.width = height, width

    def forward(self, images: Tensor) -> Tensor:
        """Map (n, c, h, w) to (n, c, height, width)."""
        return images[..., : self.height, : self.width]


def _has_convolutions(shape: tuple[int, ...]) -> bool:
    return len(shape) == 3 and min(shape[1:]) >= _SMALLEST


def _block(layer: nn.Module, norm: nn.Module, *, leaky: bool = False) -> list[nn.Module]:
    """Return a layer, its normalisation with the bias, and ReLU."""
    return [layer, norm, nn.LeakyReLU(0.2) if leaky else nn.ReLU()]


def _batch_norm(kind: Callable[..., nn.Module], width: int) -> nn.Module:
    return kind(width, track_running_stats=False)
