"""EMNIST: handwritten letters and digits, in IDX files in torchvision's layout."""

import string
from dataclasses import replace
from pathlib import Path
from typing import Literal

from coterie.datamodules.base import Half
from coterie.datamodules.downloaded import DownloadConfig
from coterie.datamodules.idx import IDXDataModule
from coterie.datamodules.source import Source, source_from_arrays

Variant = Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"]

_EVERY = tuple(sorted(string.digits + string.ascii_letters))
# Letters whose capital and small form look alike are one class (Cohen et al., 2017, section II).
_MERGED = tuple(name for name in _EVERY if name not in "cijklmopsuvwxyz")
CLASSES: dict[Variant, tuple[str, ...]] = {
    "byclass": _EVERY,
    "bymerge": _MERGED,
    "balanced": _MERGED,
    "letters": tuple(string.ascii_lowercase),
    "digits": tuple(string.digits),
    "mnist": tuple(string.digits),
}


class EMNIST(IDXDataModule["EMNIST.Config"]):
    """Handwritten characters, 28×28 grey, in six variants (Cohen et al., arXiv:1702.05373).

    Reads <root>/EMNIST/raw/emnist-<variant>-{train,test}-{images-idx3,labels-idx1}-ubyte[.gz].
    The files and torchvision have the images transposed; here they are upright.
    """

    class Config(DownloadConfig):
        """Config of EMNIST."""

        variant: Variant = "balanced"
        """Selection of samples: 62 classes (byclass), 47 (bymerge, and balanced with equal class
        sizes), 26 (letters) or 10 (digits, mnist)."""

    @property
    def title(self) -> str:
        """Name of the data set with its variant."""
        return f"emnist_{self.config.variant}"

    def stem(self, half: Half) -> str:
        """Return the prefix of the names of the training or test set's two files."""
        return f"emnist-{self.config.variant}-{half}"

    def open_half(self, half: Half) -> Source:
        """Find and open the training or the test set of the variant."""
        classes = CLASSES[self.config.variant]
        first = 1 if self.config.variant == "letters" else 0  # its labels count from 1
        images, labels = self.read_half(half, len(classes), first)
        upright = images.transpose(0, 2, 1)[:, None]
        return replace(source_from_arrays(upright, labels), classes=classes)

    def fetch(self, root: Path) -> None:
        """Download all variants, which are one archive."""
        from torchvision import datasets

        datasets.EMNIST(root=str(root), split=self.config.variant, download=True)
