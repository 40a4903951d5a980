"""How relevant the data that an encoder was pretrained on is to the data of the clients.

CP-CFL (Tun et al., section 4.3): representations of 300 random images of each data set, and the
mean cosine of all pairs across the two.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from coterie.contract.clusterer import parameter_dtype, to_unit
from coterie.contract.data import Indices
from coterie.errors import DataError

_ROWS = 256
"""Samples that are embedded at a time."""


def mean_cross_cosine(first: Tensor, second: Tensor) -> float:
    """The mean of s(u, v) over all u of the first and v of the second; a zero vector counts 0.

    It is the product of the two means of unit vectors, so n + m of them are enough.

    Args:
        first: Representations (n, d), n of 1 or more.
        second: Representations (m, d), m of 1 or more.

    Returns:
        A number in [-1, 1], in [0, 1] where representations are non-negative.

    Raises:
        DataError: If one is empty, or their widths differ.
    """
    if not len(first) or not len(second) or first.shape[1:] != second.shape[1:]:
        raise DataError(
            f"representations {tuple(first.shape)} and {tuple(second.shape)}: give (n, d) and "
            "(m, d), n and m of 1 or more."
        )
    means = [normalize(points.double(), dim=1).mean(dim=0) for points in (first, second)]
    return float(means[0] @ means[1])


def embedded_sample(
    encoder: nn.Module, samples: NDArray[np.generic], rows: Indices, count: int, seed: int
) -> Tensor:
    """Representations of random samples among some rows, of all if there are no more.

    Args:
        encoder: In eval mode; samples in [0, 1] to representations (n, d).
        samples: A data set's samples (n, …).
        rows: Rows of it to draw from, without replacement.
        count: How many to draw.
        seed: Of the draw.

    Returns:
        Representations (at most `count`, d).
    """
    rng = np.random.default_rng(seed)
    drawn = np.sort(rng.choice(rows, size=min(count, len(rows)), replace=False))
    dtype = parameter_dtype(encoder)
    with torch.inference_mode():
        parts = [
            encoder(to_unit(torch.from_numpy(samples[drawn[start : start + _ROWS]]), dtype))
            for start in range(0, len(drawn), _ROWS)
        ]
    return torch.cat(parts)
