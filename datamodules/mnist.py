"""MNIST and Fashion-MNIST, from the original IDX files in torchvision's layout."""

from typing import ClassVar

from coterie.datamodules.downloaded import DownloadConfig
from coterie.datamodules.idx import IDXDataModule


class MNIST(IDXDataModule[DownloadConfig]):
    """Handwritten digits: 60,000 + 10,000 grey images, 28×28, 10 classes."""

    class Config(DownloadConfig):
        """Config of MNIST."""

    classes: ClassVar[tuple[str, ...]] = tuple(str(digit) for digit in range(10))
    title = "mnist"


class FashionMNIST(IDXDataModule[DownloadConfig]):
    """Zalando's articles of clothing: 60,000 + 10,000 grey images, 28×28, 10 classes."""

    class Config(DownloadConfig):
        """Config of Fashion-MNIST."""

    classes: ClassVar[tuple[str, ...]] = (
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    )
    title = "fashion_mnist"
