"""The 8×8 handwritten digits of scikit-learn, which need no files."""

from typing import ClassVar, Literal

import numpy as np
from sklearn.datasets import load_digits

from coterie.datamodules.base import Half, ImageConfig, ImageDataModule
from coterie.datamodules.partitions import stratified_subset
from coterie.datamodules.source import Source, source_from_arrays

_TEST_SHARE = 0.2
_SPLIT_SEED = 0


class Digits(ImageDataModule["Digits.Config"]):
    """1,797 grey images of the ten digits, 8×8, from `sklearn.datasets.load_digits`.

    The set has no test half; a fixed fifth of each class serves as one.
    """

    class Config(ImageConfig):
        """Config of the digits; `root` has no effect."""

        split: Literal["train", "test", "all"] = "all"
        """Which samples are federated; by default all 1,797."""

    classes: ClassVar[tuple[str, ...]] = tuple(str(digit) for digit in range(10))
    title = "digits"

    def open_all(self) -> Source:
        """Return all images in scikit-learn's order, grey levels scaled from 0..16 to 0..255."""
        data = load_digits()
        images = np.rint(data.images * (255 / 16)).astype(np.uint8)[:, None]
        return source_from_arrays(images, data.target.astype(np.int64))

    def open_half(self, half: Half) -> Source:
        """Return the fixed 80 % (train) or 20 % (test) of each class."""
        source = self.open_all()
        test = stratified_subset(
            load_digits().target, round(_TEST_SHARE * source.count), _SPLIT_SEED
        )
        return source.rows(test if half == "test" else np.setdiff1d(np.arange(source.count), test))
