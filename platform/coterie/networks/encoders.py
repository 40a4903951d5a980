"""Encoders: networks from samples to representations, each built from a frozen config."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from coterie.config.component import Component
from coterie.errors import ConfigError
from coterie.precision import unit_rows

Norm = Literal["batch", "group", "none"]
"""Normalisation of convolutional layers. Only "batch" couples the samples of a batch."""

Width = Annotated[int, Field(ge=1)]
"""Width of a layer, in units."""


class Encoder(nn.Module):
    """A network with a known output width.

    Attributes:
        network: Maps a batch of samples to (n, features).
        features: Width of the representation.
        files: What a saved model has to hold besides the weights: file name to content.
        unit_length: Whether representations are brought to unit length.
    """

    def __init__(
        self,
        network: nn.Module,
        features: int,
        files: Mapping[str, bytes] | None = None,
        *,
        unit_length: bool = False,
    ) -> None:
        super().__init__()
        self.network = network
        self.features = features
        self.files: Mapping[str, bytes] = files or {}
        self.unit_length = unit_length

    def forward(self, samples: Tensor) -> Tensor:
        """Encode a batch.

        Args:
            samples: Images (n, channels, height, width) with values in [0, 1], or vectors (n, d).

        Returns:
            Representations (n, features); those of unit length in float32 or wider.
        """
        representations: Tensor = self.network(samples)
        return unit_rows(representations) if self.unit_length else representations


class EncoderConfig(Component, ABC):
    """Base of the encoders' configs."""

    @abstractmethod
    def build(self, shape: tuple[int, ...]) -> Encoder:
        """Build an encoder; its initial weights come from torch's global generator.

        Args:
            shape: The shape of one sample: (channels, height, width) or (features,).

        Raises:
            ConfigError: If the encoder cannot take samples of this shape.
        """

    def advice(self, shape: tuple[int, ...]) -> str:
        """Return a warning if the weights do not suit samples of this shape, or else ""."""
        return ""

    @property
    def untrained(self) -> bool:
        """Whether the network's weights are random, unless a method trains them."""
        return False

    def architecture(self) -> "EncoderConfig":
        """Return a config of the same architecture without given weights."""
        return self

    def among(self, folder: Path) -> "EncoderConfig":
        """Return a config of the same architecture that depends only on files in this folder.

        Args:
            folder: A saved model's, which holds the encoder's `files`.
        """
        return self.architecture()


class ScalableConfig(EncoderConfig, ABC):
    """Base of configs of encoders that can scale representations to unit length.

    Distances are then functions of cosines (Schroff et al., "FaceNet: A Unified Embedding for Face
    Recognition and Clustering", section 3), and no loss can move all representations away.
    """

    unit_length: bool = False
    """Whether to bring representations to unit length."""

    @property
    def untrained(self) -> bool:
        """See `EncoderConfig.untrained`."""
        return True


class ConvNet2(ScalableConfig):
    """Two convolutions with pooling and a linear layer: a small network for federated averaging.

    Convolutions of w and 2w kernels 3×3 with padding 1, each followed by ReLU and a 2×2 maximum,
    then a linear layer with ReLU: representations are non-negative. With a linear classifier of
    ten classes and 28×28 grey images it has 105,866 parameters.
    """

    width: Width = 16
    """Kernels of the first convolution, w."""
    features: Width = 64
    """Width of the representation."""

    def build(self, shape: tuple[int, ...]) -> Encoder:
        """See `EncoderConfig.build`."""
        channels, height, width = image_shape("ConvNet2", shape, smallest=4)
        layers: list[nn.Module] = []
        for inputs, outputs in ((channels, self.width), (self.width, 2 * self.width)):
            # Max-pooling first: it commutes with ReLU, which then has a quarter of the work.
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()]
        flat = 2 * self.width * (height // 4) * (width // 4)
        layers += [nn.Flatten(), nn.Linear(flat, self.features), nn.ReLU()]
        return Encoder(
            channels_last(nn.Sequential(*layers)), self.features, unit_length=self.unit_length
        )


class ConvNet3(ScalableConfig):
    """Three strided convolutions and a linear layer: CCFC's encoder for small images.

    Convolutions of w, 2w and 4w kernels 4×4 (64, 128 and 256 in CCFC) with stride 2 and padding 1,
    each followed by normalisation and LeakyReLU 0.2. Inputs have at least 8×8 pixels.
    """

    width: Width = 64
    """Kernels of the first convolution, w."""

    features: Width | None = 256
    """Width of the representation; None omits the linear layer."""
    norm: Norm = "batch"
    """Normalisation after each convolution."""
    standardise: bool = False
    """Whether to append a BatchNorm without parameters, as CCFC's code does in the projector."""

    def build(self, shape: tuple[int, ...]) -> Encoder:
        """See `EncoderConfig.build`."""
        channels, height, width = image_shape("ConvNet3", shape, smallest=8)
        layers: list[nn.Module] = []
        first = self.width
        for inputs, outputs in ((channels, first), (first, 2 * first), (2 * first, 4 * first)):
            # Normalisation has its own shift, so the convolution needs no bias.
            layers.append(nn.Conv2d(inputs, outputs, 4, 2, 1, bias=self.norm == "none"))
            layers += [normalisation(self.norm, outputs), nn.LeakyReLU(0.2)]
        flat = 4 * first * (height // 8) * (width // 8)
        layers.append(nn.Flatten())
        if self.features is not None:
            layers.append(nn.Linear(flat, self.features))
        features = flat if self.features is None else self.features
        if self.standardise:
            layers.append(nn.BatchNorm1d(features, affine=False))
        network: nn.Module = nn.Sequential(*layers)
        # On a CPU, group normalisation takes longer with channels last.
        network = network if self.norm == "group" else channels_last(network)
        return Encoder(network, features, unit_length=self.unit_length)


class ConvNet4(ScalableConfig):
    """Four strided convolutions and a dense layer: CP-CFL's encoder.

    Convolutions of 64, 128, 192 and 256 kernels 3×3 with stride 2 and no padding, then a dense
    layer, all with ReLU: representations are non-negative. Inputs have at least 31×31 pixels.
    """

    features: Width = 256
    """Width of the representation."""

    def build(self, shape: tuple[int, ...]) -> Encoder:
        """See `EncoderConfig.build`."""
        channels, height, width = image_shape("ConvNet4", shape, smallest=31)
        layers: list[nn.Module] = []
        for inputs, outputs in ((channels, 64), (64, 128), (128, 192), (192, 256)):
            layers += [nn.Conv2d(inputs, outputs, 3, 2), nn.ReLU()]
            height, width = (height - 1) // 2, (width - 1) // 2
        layers += [nn.Flatten(), nn.Linear(256 * height * width, self.features), nn.ReLU()]
        return Encoder(
            channels_last(nn.Sequential(*layers)), self.features, unit_length=self.unit_length
        )


class USPSNet(ScalableConfig):
    """One convolution and three linear layers: CF-CL's encoder for USPS.

    8 kernels 3×3 (stride 1, no padding), then 1024, 256 and `features` units, ReLU in between.
    """

    features: Width = 16
    """Width of the representation."""

    def build(self, shape: tuple[int, ...]) -> Encoder:
        """See `EncoderConfig.build`."""
        channels, height, width = image_shape("USPSNet", shape, smallest=3)
        flat = 8 * (height - 2) * (width - 2)
        layers = [nn.Conv2d(channels, 8, 3), nn.ReLU(), nn.Flatten()]
        layers += dense(flat, [1024, 256], self.features)
        return Encoder(nn.Sequential(*layers), self.features, unit_length=self.unit_length)


class AlexNet(ScalableConfig):
    """AlexNet (Krizhevsky et al., 2012) for small images: CF-CL's encoder for Fashion-MNIST.

    Convolutions of w, 3w, 6w, 4w and 4w kernels 3×3 with padding 1, 2×2 maxima after the first,
    second and fifth, then one hidden layer; ReLU in between, no normalisation or dropout. CF-CL
    prints 45,433 parameters for 28×28 grey images, which these widths have; its own are not known.
    Inputs have at least 8×8 pixels.
    """

    width: Width = 8
    """Kernels of the first convolution, w."""
    hidden: Width = 33
    """Units of the hidden layer."""
    features: Width = 16
    """Width of the representation."""

    def build(self, shape: tuple[int, ...]) -> Encoder:
        """See `EncoderConfig.build`."""
        channels, height, width = image_shape("AlexNet", shape, smallest=8)
        kernels = [channels, *(times * self.width for times in (1, 3, 6, 4, 4))]
        layers: list[nn.Module] = []
        for number, (inputs, outputs) in enumerate(pairwise(kernels)):
            pooled = [nn.MaxPool2d(2)] if number in (0, 1, 4) else []
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), *pooled, nn.ReLU()]
        flat = kernels[-1] * (height // 8) * (width // 8)
        layers += [nn.Flatten(), *dense(flat, [self.hidden], self.features)]
        return Encoder(
            channels_last(nn.Sequential(*layers)), self.features, unit_length=self.unit_length
        )


class MLP(ScalableConfig):
    """Linear layers with ReLU in between, for feature vectors or flattened images."""

    hidden: Annotated[tuple[Width, ...], Field(strict=False, max_length=100)] = (512, 256)
    """Widths of the hidden layers; empty for a linear encoder."""
    features: Width = 128
    """Width of the representation."""

    def build(self, shape: tuple[int, ...]) -> Encoder:
        """See `EncoderConfig.build`."""
        layers = [nn.Flatten(), *dense(math.prod(shape), list(self.hidden), self.features)]
        return Encoder(nn.Sequential(*layers), self.features, unit_length=self.unit_length)


class Raw(ScalableConfig):
    """No network: the samples, flattened, for methods that cluster raw data."""

    @property
    def untrained(self) -> bool:
        """See `EncoderConfig.untrained`."""
        return False

    def build(self, shape: tuple[int, ...]) -> Encoder:
        """See `EncoderConfig.build`."""
        return Encoder(nn.Flatten(), math.prod(shape), unit_length=self.unit_length)


def channels_last(network: nn.Module) -> nn.Module:
    """Return the network with channels last in memory; samples take its first layer's layout.

    On a CPU, a step takes 0.79 to 0.98 of the time, and pooling a third; tensor cores need no
    transposing.
    """
    return network.to(memory_format=torch.channels_last)


def normalisation(norm: Norm, channels: int) -> nn.Module:
    """Return a normalisation layer for (n, channels, height, width).

    GroupNorm has gcd(32, channels) groups.
    """
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    if norm == "group":
        return nn.GroupNorm(math.gcd(32, channels), channels)
    return nn.Identity()


def dense(inputs: int, hidden: list[int], outputs: int) -> list[nn.Module]:
    """Return linear layers from `inputs` over `hidden` to `outputs` units, with ReLU in between."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return [*layers, nn.Linear(inputs, outputs)]


def image_shape(name: str, shape: tuple[int, ...], smallest: int) -> tuple[int, int, int]:
    """Return the shape of an image.

    Raises:
        ConfigError: If it is not an image's, or a side has fewer than `smallest` pixels.
    """
    if len(shape) != 3:
        raise ConfigError(
            f"encoder={name}: it takes images (channels, height, width), not samples of shape "
            f"{shape}; for vectors choose encoder=raw, which takes them as they are, or "
            "encoder=mlp, which a method trains."
        )
    channels, height, width = shape
    if min(height, width) < smallest:
        raise ConfigError(
            f"encoder={name}: images of {height}×{width} pixels are too small, it takes "
            f"{smallest}×{smallest} and more; resize them with data.size={smallest} or above."
        )
    return channels, height, width
