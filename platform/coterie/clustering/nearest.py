"""The nearest other points of each point."""

import numpy as np
from jaxtyping import Float, Int64
from threadpoolctl import threadpool_limits


def nearest_others(points: Float[np.ndarray, "n d"], count: int) -> Int64[np.ndarray, "n k"]:
    """Return the positions of each point's k nearest others by cosine, ascending.

    All distances are computed, on one thread, in float64. Rows are in the order of the positions
    rather than of the distances, whose last bits differ between processors.

    Args:
        points: At least two.
        count: k, at most n − 1: with fewer points all others are taken.
    """
    from sklearn.neighbors import NearestNeighbors  # a slow import, needed by few methods

    with threadpool_limits(1):
        search = NearestNeighbors(
            n_neighbors=min(count, len(points) - 1), algorithm="brute", metric="cosine"
        ).fit(points.astype(np.float64))
        near = search.kneighbors(return_distance=False)
    found: Int64[np.ndarray, "n k"] = np.sort(near, axis=1).astype(np.int64)
    return found
