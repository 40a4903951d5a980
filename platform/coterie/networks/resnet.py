"""ResNet-18, 34 and 50 as encoders, from torchvision, without the classifier."""

from functools import partial
from typing import Literal

from torch import Tensor, nn
from torchvision.models import resnet

from coterie.networks.encoders import (
    Encoder,
    Norm,
    ScalableConfig,
    Width,
    channels_last,
    image_shape,
    normalisation,
)


class _Basic(resnet.BasicBlock):  # type: ignore[misc]
    """A block of two convolutions whose sum is a new tensor, so that hooks can read its parts."""

    def forward(self, x: Tensor) -> Tensor:
        found = self.relu(self.bn1(self.conv1(x)))
        found = self.bn2(self.conv2(found))
        return self.relu(found + (x if self.downsample is None else self.downsample(x)))  # type: ignore[no-any-return]


class _Bottleneck(resnet.Bottleneck):  # type: ignore[misc]
    """A block of three convolutions whose sum is a new tensor, so that hooks can read its parts."""

    def forward(self, x: Tensor) -> Tensor:
        found = self.relu(self.bn1(self.conv1(x)))
        found = self.relu(self.bn2(self.conv2(found)))
        found = self.bn3(self.conv3(found))
        return self.relu(found + (x if self.downsample is None else self.downsample(x)))  # type: ignore[no-any-return]


_DEPTHS: dict[int, tuple[type[_Basic] | type[_Bottleneck], list[int], int]] = {
    18: (_Basic, [2, 2, 2, 2], 512),
    34: (_Basic, [3, 4, 6, 3], 512),
    50: (_Bottleneck, [3, 4, 6, 3], 2048),
}


class ResNet(ScalableConfig):
    """A residual network (He et al., 2016); its representation is the average-pooled last block.

    Weights have torchvision's random initialisation and are never downloaded. Without
    normalisation, activations grow with depth at that initialisation.
    """

    depth: Literal[18, 34, 50] = 18
    """Number of layers; the last block has 512 features for 18 and 34, 2048 for 50."""
    features: Width | None = None
    """Width of the representation, from a linear layer after the last block; None omits the
    layer."""
    stem: Literal["imagenet", "small"] = "small"
    """"imagenet": 7×7 convolution with stride 2 and max-pool. "small": 3×3 with stride 1 and no
    pooling, for images of up to 64 pixels."""
    norm: Norm = "batch"
    """Normalisation after each convolution."""

    def build(self, shape: tuple[int, ...]) -> Encoder:
        """See `EncoderConfig.build`."""
        channels, _, _ = image_shape("ResNet", shape, smallest=1)
        block, layers, blocks = _DEPTHS[self.depth]
        network = resnet.ResNet(block, layers, norm_layer=partial(normalisation, self.norm))
        features = self.features or blocks
        network.fc = nn.Linear(blocks, features) if self.features else nn.Identity()
        if self.stem == "small":
            network.conv1 = _first_convolution(channels, kernel=3, stride=1)
            network.maxpool = nn.Identity()
        elif channels != 3:
            network.conv1 = _first_convolution(channels, kernel=7, stride=2)
        return Encoder(channels_last(network), features, unit_length=self.unit_length)


def _first_convolution(channels: int, kernel: int, stride: int) -> nn.Conv2d:
    """Return a first convolution, initialised as torchvision initialises the one it replaces."""
    conv = nn.Conv2d(channels, 64, kernel, stride, kernel // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv
