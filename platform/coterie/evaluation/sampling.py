"""Draws rows of a data set: a fixed sample, or a share of each class."""

import numpy as np
from numpy.typing import NDArray

from coterie.contract.data import Indices
from coterie.errors import DataError


def fixed_sample(rows: Indices, n: int | None, seed: int) -> Indices:
    """Draw up to n rows, in order; all rows if n is None."""
    if n is None or n >= len(rows):
        return rows
    rng = np.random.default_rng(seed)
    return rows[np.sort(rng.choice(len(rows), size=n, replace=False))]


def labelled_rows(labels: NDArray[np.int64], share: float, seed: int) -> NDArray[np.int64]:
    """Draw labelled rows in order: this share of each class, at least one sample of each."""
    if not 0.0 < share <= 1.0:
        raise DataError(f"share={share:g}: it must be above 0 and at most 1.")
    order = np.random.default_rng(seed).permutation(len(labels))
    chosen = []
    for kind in np.unique(labels):
        own = order[labels[order] == kind]
        chosen.append(own[: max(1, round(share * len(own)))])
    return np.sort(np.concatenate(chosen))
