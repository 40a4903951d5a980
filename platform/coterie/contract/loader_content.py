"""The arrays in a user's data set, by which a resumed run tells whether its data has changed."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

_UNKNOWN = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
"""Types that NumPy lacks."""
_DEPTH = 4
"""How deep data sets within data sets, and lists within those, are looked into."""
_MANY = 1000
"""The most members of a list that are looked at."""


def arrays_of(value: object, depth: int = _DEPTH) -> Iterator[NDArray[Any]]:
    """Return the arrays of numbers that a data set keeps in memory, in the order of their names.

    Those of `TensorDataset`, `Subset`, `ConcatDataset` and torchvision's data sets are found; of a
    data set that reads files there are none.
    """
    if isinstance(value, torch.Tensor):
        if value.layout is torch.strided and value.device.type == "cpu":
            whole = value.detach().resolve_conj().resolve_neg().contiguous()
            rows = whole if whole.ndim else whole.reshape(1)
            # NumPy has no bfloat16: its bytes do as well.
            plain = rows.view(torch.uint8) if rows.dtype in _UNKNOWN else rows
            yield plain.numpy()
    elif isinstance(value, np.ndarray):
        if value.dtype.kind in "biufc":
            yield value
    elif depth and isinstance(value, list | tuple):
        for each in value[:_MANY]:
            yield from arrays_of(each, depth - 1)
    elif depth and isinstance(value, Dataset):
        for _, each in sorted(vars(value).items()):
            yield from arrays_of(each, depth - 1)


def arrays_of_loaders(value: object) -> Iterator[NDArray[Any]]:
    """Return the arrays of a loader's data set, or of several loaders in a list or a mapping."""
    if isinstance(value, DataLoader):
        yield from arrays_of(value.dataset)
    elif isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from arrays_of_loaders(each)
