"""An encoder chosen by the samples' shape, for experiments that are not tied to a data set."""

from coterie.networks.encoders import MLP, ConvNet3, Encoder, ScalableConfig, image_shape

_SMALL, _MIDDLE, _LARGE = 32, 64, 224


class Auto(ScalableConfig):
    """The encoder for samples of this shape.

    | samples | network |
    | --- | --- |
    | vectors | `MLP` |
    | images below 32 pixels, and grey ones of 32 | `ConvNet3` |
    | 32 to 64 pixels | ResNet-18 with the small stem |
    | 65 to 223 | ResNet-18 with ImageNet's stem |
    | 224 and more | ResNet-50 with ImageNet's stem |

    The shorter side counts. A network of your own choice has more keys.
    """

    def build(self, shape: tuple[int, ...]) -> Encoder:
        """Return the chosen network; see `EncoderConfig.build`."""
        encoder = self.choice(shape).build(shape)
        encoder.unit_length = self.unit_length
        return encoder

    def choice(self, shape: tuple[int, ...]) -> ScalableConfig:
        """Return the config of the network for samples of this shape."""
        if len(shape) == 1:
            return MLP()
        channels, height, width = image_shape("Auto", shape, smallest=8)
        side = min(height, width)
        if side < _SMALL or (side == _SMALL and channels == 1):
            return ConvNet3()
        # torchvision takes a second to import.
        from coterie.networks.resnet import ResNet

        if side >= _LARGE:
            return ResNet(depth=50, stem="imagenet")
        return ResNet(depth=18, stem="small" if side <= _MIDDLE else "imagenet")
