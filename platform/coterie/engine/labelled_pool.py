"""Training samples that no client gets: their labels are what a network is fine-tuned with."""

from collections.abc import Sequence

import numpy as np

from coterie.contract.data import DataArrays, Indices
from coterie.contract.seeds import derive_seed
from coterie.errors import DataError
from coterie.evaluation.semi_supervised import labelled_rows


def draw_pool(data: DataArrays, share: float, seed: int) -> Indices:
    """The training rows of the pool, sorted: this share of each class; none for a share of 0.

    FedU and Orchestra (section 6.1) fine-tune with labels of samples that were held out of the
    federated training.

    Args:
        data: Whose samples of known class are drawn from.
        share: In [0, 1).
        seed: The run's.

    Raises:
        DataError: If there are no labels.
    """
    if not share:
        return np.empty(0, np.int64)
    known = np.empty(0, np.int64) if data.labels is None else np.flatnonzero(data.labels >= 0)
    if data.labels is None or not len(known):
        raise DataError(f"labelled_pool={share:g}: data={data.name} has no labels; leave it out.")
    return known[labelled_rows(data.labels[known], share, derive_seed(seed, "labelled pool"))]


def without_pool(parts: Sequence[Indices], pool: Indices) -> list[Indices]:
    """The clients' rows that are not in the pool, in their order."""
    return [rows[~np.isin(rows, pool)] for rows in parts] if len(pool) else list(parts)
