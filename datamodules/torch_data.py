"""Samples of a user's torch data, for Coterie's own methods.

These draw views themselves and take samples as arrays, so each sample is read once, at the start.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import DataLoader

from coterie.config.free_memory import free_memory
from coterie.contract.loaders import Source as LoaderSource
from coterie.contract.seeds import seeded_everywhere
from coterie.datamodules.base import DataConfig, DataSet, Half
from coterie.datamodules.custom_data import number_classes
from coterie.datamodules.lightning_data import GivenData, class_in, name_of, open_path, opened
from coterie.datamodules.npz import as_samples
from coterie.datamodules.source import Samples, Source, merge_sources
from coterie.errors import DataError, reason
from coterie.tracking.formatting import format_bytes

_TWICE = 8
"""Samples that are read a second time, to see whether they are the same."""


class TorchData(DataSet["TorchData.Config"]):
    """The samples of a LightningDataModule, DataLoader or torch Dataset, or of one for each client.

    A sample is a tensor, an array or a PIL image, or the first of them in a tuple or a mapping:
    an image of uint8, booleans or decimal numbers in 0..1, or a vector (features,). Its class is a
    tuple's second part, or in a mapping under a usual name such as `label`. Of a data module the
    test loader, or else the validation loader, has the held-out samples.
    """

    class Config(GivenData, DataConfig):
        """Where the data comes from."""

    @property
    def title(self) -> str:
        """Name of the data's class."""
        return name_of(self.config)

    @cached_property
    def _opened(self) -> tuple[LoaderSource, ...]:
        config = self.config
        if config.given is not None:
            return opened(config.given)
        return open_path(config.path(), dict(config.arguments))

    @cached_property
    def _train(self) -> tuple[Source, ...]:
        """The training samples of each data set."""
        read = [_gathered(source.loader.dataset, self.title) for source in self._opened]
        flat = [label for _, labels in read for label in labels]
        numbers, classes = number_classes(flat, f"data={self.title}: labels")
        ends = np.cumsum([len(samples) for samples, _ in read])
        each = np.split(numbers, ends[:-1])
        return tuple(
            _source(samples, labels, classes)
            for (samples, _), labels in zip(read, each, strict=True)
        )

    @cached_property
    def _held_out(self) -> Any:
        """The data set of the held-out samples, or None."""
        (first, *others) = self._opened
        loaders = [first.test, first.validation]
        found = next((one for one in loaders if isinstance(one, DataLoader)), None)
        return None if others or found is None else found.dataset

    def has_test(self) -> bool:
        """Return whether a data module has a loader of held-out samples."""
        return self._held_out is not None

    def open_half(self, half: Half) -> Source:
        """Read the samples of the training or test set."""
        parts = self._train
        if half == "test":
            samples, values = _gathered(self._held_out, self.title)
            name, classes = f"data={self.title}: labels of the test set", parts[0].classes
            labels, _ = number_classes(values, name, classes)
            return _source(samples, labels, classes)
        whole = parts[0]
        for part in parts[1:]:
            whole = merge_sources(whole, part)
        if len(parts) == 1:
            return whole
        owners = np.repeat(np.arange(len(parts)), [part.count for part in parts])
        names = tuple(f"client {number}" for number in range(len(parts)))
        return replace(whole, owners=owners.astype(np.int64), owner_names=names)


def _source(samples: Samples, labels: NDArray[np.int64], classes: tuple[str, ...]) -> Source:
    known = labels if classes else None
    return Source(count=len(samples), read=samples.__getitem__, labels=known, classes=classes)


def _gathered(data: Any, name: str) -> tuple[Samples, list[Any]]:
    """Read every sample of a data set, and its class or None.

    Raises:
        DataError: If one cannot be read, they differ in shape or do not fit into memory, or they
            are drawn at random.
    """
    with seeded_everywhere(0):
        first, _ = _sample(data, 0, name)
        needed, free = len(data) * first.nbytes, free_memory()
        if needed > free:
            raise DataError(
                f"data={name}: its {len(data):,} samples of shape {first.shape} take "
                f"{format_bytes(needed)}, but this machine has {format_bytes(free)} free; make "
                "them smaller, or give files that data.stream=true reads on demand."
            )
        samples = np.empty((len(data), *first.shape), first.dtype)
        classes = []
        for row in range(len(data)):
            found, label = _sample(data, row, name)
            if found.shape != first.shape:
                raise DataError(
                    f"data={name}: sample 0 has shape {first.shape} and sample {row} "
                    f"{found.shape}; bring them to one shape in the data's transform."
                )
            samples[row] = found
            classes.append(label)
        for row in range(min(_TWICE, len(data))):
            if not np.array_equal(_sample(data, row, name)[0], samples[row], equal_nan=True):
                raise DataError(
                    f"data={name}: sample {row} changes each time it is read; leave random "
                    "transforms out, as the method draws its views itself."
                )
    return samples, classes


def _sample(data: Any, row: int, name: str) -> tuple[Samples, Any]:
    """Return one sample as an image (channels, height, width) or a vector, and its class."""
    where = f"data={name}: sample {row}"
    try:
        given = data[row]
        content = _content(given)
        found = np.asarray(content)
    except Exception as error:  # the user's own code
        raise DataError(f"{where} cannot be read ({reason(error)}).") from error
    if found.ndim not in (1, 2, 3) or not found.size or found.dtype.kind not in "fiub":
        raise DataError(
            f"{where} is of type {found.dtype} and shape {found.shape}; give an image or a vector "
            "of numbers."
        )
    if found.ndim > 1 and found.dtype != np.uint8 and not _is_within_one(found):
        raise DataError(
            f"{where} is an image of {found.dtype} in {found.min():g}..{found.max():g}; give "
            "uint8, or numbers in 0..1 without Normalize."
        )
    label = None if content is given else class_in(given)
    return as_samples(found[None], where)[0], label


def _is_within_one(image: NDArray[Any]) -> bool:
    return image.dtype.kind in "fb" and bool(((image >= 0) & (image <= 1)).all())


def _is_whole(part: Any) -> bool:
    """Return whether a part of a sample is a picture, or a list, tensor or array of numbers."""
    if isinstance(part, torch.Tensor | np.ndarray):
        return part.ndim > 0
    return isinstance(part, Image.Image | list)


def _content(sample: Any) -> Any:
    """Return a sample's picture, tensor or array: the sample itself, or its first such part."""
    parts = [*sample.values()] if isinstance(sample, Mapping) else sample
    if isinstance(parts, tuple | list) and parts:
        sample = next((part for part in parts if _is_whole(part)), sample)
    if isinstance(sample, Image.Image):
        return sample if sample.mode in ("L", "RGB") else sample.convert("RGB")
    return sample.detach().cpu() if isinstance(sample, torch.Tensor) else sample
