"""Checks of a data set before a run, whichever data module it comes from."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.contract.data import DataArrays, Samples
from coterie.errors import DataError

_VALUES = 2**24
"""Values compared at a time; comparing a whole data set would double its memory."""


def check_data(data: DataArrays, *, whole: bool = True) -> None:
    """Refuse data that cannot be learned from or evaluated.

    Args:
        data: The data.
        whole: Whether this is all of it; one client's samples may all be equal.

    Raises:
        DataError: If there are no samples, their form is not that of `DataArrays`, they are not
            finite or all equal, or labels or owners do not fit them.
    """
    _check_samples(data.name, data.samples)
    if whole:
        _check_variety(data.name, data.samples)
    labels, count = range(-1, len(data.classes)), len(data.samples)
    _check_numbers(f"data={data.name}: labels", data.labels, count, labels)
    owners = range(len(data.owner_names))
    _check_numbers(f"data={data.name}: owners", data.owners, count, owners)
    if data.test_samples is not None:
        name = f"{data.name}, test set"
        _check_samples(name, data.test_samples)
        if data.test_samples.shape[1:] != data.shape:
            raise DataError(
                f"data={name}: its samples have shape {data.test_samples.shape[1:]}, the training "
                f"samples {data.shape}; make them alike, for images with data.size."
            )
        _check_numbers(f"data={name}: labels", data.test_labels, len(data.test_samples), labels)


def _check_samples(name: str, samples: Samples) -> None:
    if not samples.size:
        raise DataError(f"data={name}: it has no samples (shape {samples.shape}); add some.")
    if (samples.ndim, samples.dtype.name) not in ((4, "uint8"), (2, "float32")):
        raise DataError(
            f"data={name}: its samples are {samples.dtype} of shape {samples.shape}; give uint8 "
            "images (n, channels, height, width) or float32 vectors (n, features)."
        )
    if samples.dtype == np.float32:
        finite = [np.isfinite(chunk).all(axis=1) for chunk in _chunks(samples)]
        bad = np.flatnonzero(~np.concatenate(finite))
        if len(bad):
            raise DataError(
                f"data={name}: {len(bad)} of {len(samples)} samples have NaN or infinite features, "
                f"the first in row {bad[0]}; take them out or fill them in."
            )


def _check_variety(name: str, samples: Samples) -> None:
    first = samples[:1]
    if len(samples) > 1 and not any((chunk != first).any() for chunk in _chunks(samples)):
        ground = ", and data.background if pictures are transparent" if samples.ndim == 4 else ""
        raise DataError(
            f"data={name}: all {len(samples)} samples are the same, so there is nothing to learn "
            f"or to cluster; check how they were made{ground}."
        )


def _chunks(samples: Samples) -> Iterator[NDArray[Any]]:
    """Return the samples in blocks of a bounded size, each read when it is asked for."""
    rows = max(1, _VALUES * len(samples) // samples.size)
    return (samples[start : start + rows] for start in range(0, len(samples), rows))


def _check_numbers(
    what: str, numbers: NDArray[np.int64] | None, count: int, allowed: range
) -> None:
    if numbers is None:
        return
    if numbers.shape != (count,):
        raise DataError(f"{what} have shape {numbers.shape} for {count} samples; give one each.")
    wrong = np.flatnonzero((numbers < allowed.start) | (numbers >= allowed.stop))
    if len(wrong):
        raise DataError(
            f"{what} hold {numbers[wrong[0]]} in row {wrong[0]}, but have to be in "
            f"{allowed.start}..{allowed.stop - 1}; number them from 0."
        )
