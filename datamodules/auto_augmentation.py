"""An augmentation chosen by the samples' shape, for experiments that are not tied to a data set."""

from torch import nn

from coterie.datamodules.augmentations import (
    AugmentationConfig,
    DigitsAugmentation,
    NaturalAugmentation,
    VectorNoise,
)

_SMALL = 32


class Auto(AugmentationConfig):
    """The augmentation for samples of this shape.

    `VectorNoise` for vectors, `DigitsAugmentation` for grey images of up to 32 pixels (the shorter
    side counts), and `NaturalAugmentation` for all others. Larger grey images, such as X-rays, need
    a choice of your own: a flip may change what they show.
    """

    def build(self, shape: tuple[int, ...]) -> nn.Module:
        """See `AugmentationConfig.build`."""
        return self.choice(shape).build(shape)

    def choice(self, shape: tuple[int, ...]) -> AugmentationConfig:
        """Return the config of the views for samples of this shape."""
        if len(shape) == 1:
            return VectorNoise()
        small = shape[0] == 1 and min(shape[1:]) <= _SMALL
        return DigitsAugmentation() if small else NaturalAugmentation()
