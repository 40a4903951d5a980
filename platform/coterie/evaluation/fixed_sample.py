"""The samples of an evaluation between rounds: the same ones each time."""

import numpy as np

from coterie.contract.data import Indices


def fixed_sample(rows: Indices, most: int | None, seed: int) -> Indices:
    """At most so many of the rows, drawn by the seed and in their order; all of them without."""
    if most is None or most >= len(rows):
        return rows
    rng = np.random.default_rng(seed)
    return rows[np.sort(rng.choice(len(rows), size=most, replace=False))]
