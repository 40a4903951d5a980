"""A graph over prototypes, its spectral embedding, and its cut into clusters.

The weights are UMAP's fuzzy simplicial set (McInnes et al., "UMAP: Uniform Manifold Approximation
and Projection for Dimension Reduction", 2018, algorithms 2 and 3). The cut is normalised spectral
clustering (Ng, Jordan and Weiss, "On Spectral Clustering", 2001). All of it runs on one thread, so
that the bits do not depend on the number of cores.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64
from scipy.sparse import csr_matrix, diags
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import eigsh
from threadpoolctl import threadpool_limits

from coterie.errors import DataError

Matrix = Float64[np.ndarray, "n d"]

_SEARCHES = 64
"""Halvings of the interval in which a point's scale is searched."""
_RESTARTS = 20
"""Starts of k-means on the spectral embedding; the one of least inertia counts."""
_DENSE = 64
"""Graphs of at most this many vertices are decomposed as dense matrices."""


@dataclass(frozen=True)
class Spectrum:
    """Leading eigenvectors of a graph's normalised adjacency D^-1/2 A D^-1/2.

    Attributes:
        values: The largest eigenvalues, descending from 1.
        vectors: Their eigenvectors.
    """

    values: Float64[np.ndarray, "m"]
    vectors: Float64[np.ndarray, "n m"]


def fuzzy_graph(points: Matrix, neighbours: int) -> csr_matrix:
    """Build UMAP's graph: a symmetric weight in [0, 1] for each pair of near points.

    The nearest neighbour of a point has weight 1. The others fall off with the distance beyond it,
    on a scale at which a point's weights sum to log2(neighbours + 1). The two directions are joined
    as a + b − a b.

    Args:
        points: Points.
        neighbours: Neighbours of each point, at least 2 and fewer than there are points.

    Raises:
        DataError: If there are too few points.
    """
    if not 2 <= neighbours < len(points):
        raise DataError(
            f"neighbours={neighbours}: a graph over {len(points)} prototypes takes 2 to "
            f"{len(points) - 1}; change it, or ask for more prototypes."
        )
    from sklearn.neighbors import NearestNeighbors  # a slow import, needed by the server only

    with threadpool_limits(1):
        search = NearestNeighbors(n_neighbors=neighbours, algorithm="brute").fit(points)
        away, near = search.kneighbors()
    beyond = np.maximum(away - away[:, :1], 0.0)
    weights = np.exp(-beyond / _scales(beyond, np.log2(neighbours + 1))[:, None])
    rows = np.repeat(np.arange(len(points)), neighbours)
    shape = (len(points), len(points))
    directed = csr_matrix((weights.ravel(), (rows, near.ravel())), shape)
    return csr_matrix(directed + directed.T - directed.multiply(directed.T))


def _scales(beyond: Matrix, target: float) -> Float64[np.ndarray, "n"]:
    """Return the scale s of each row at which Σ exp(−beyond / s) is the target, by bisection."""
    low, high = np.zeros(len(beyond)), np.full(len(beyond), np.inf)
    scale = np.ones(len(beyond))
    for _ in range(_SEARCHES):
        over = np.exp(-beyond / scale[:, None]).sum(axis=1) > target
        high, low = np.where(over, scale, high), np.where(over, low, scale)
        scale = np.where(np.isinf(high), 2 * scale, (low + high) / 2)
    return np.maximum(scale, np.finfo(float).tiny)


def spectrum(graph: csr_matrix, size: int) -> Spectrum:
    """Return the `size` leading eigenvectors; at most one fewer than vertices in a large graph.

    Each connected component is decomposed on its own: together they have the eigenvalue 1 once for
    each, and a Lanczos method misses some of equal eigenvalues.
    """
    number, of = connected_components(graph, directed=False)
    parts = [np.flatnonzero(of == component) for component in range(number)]
    found = [_connected_spectrum(graph[part][:, part], size) for part in parts]
    values = np.concatenate([each.values for each in found])
    vectors = np.zeros((graph.shape[0], len(values)))
    column = 0
    for part, each in zip(parts, found, strict=True):
        vectors[part, column : column + len(each.values)] = each.vectors
        column += len(each.values)
    order = np.argsort(-values, kind="stable")[:size]
    return Spectrum(values[order], vectors[:, order])


def _connected_spectrum(graph: csr_matrix, size: int) -> Spectrum:
    degree = np.asarray(graph.sum(axis=1)).ravel()
    root = diags(1.0 / np.sqrt(np.maximum(degree, np.finfo(float).tiny)))
    normal = root @ graph @ root
    with threadpool_limits(1):
        if graph.shape[0] <= max(_DENSE, 2 * size):
            values, vectors = np.linalg.eigh(normal.toarray())
        else:
            start = np.random.default_rng(0).standard_normal(len(degree))
            values, vectors = eigsh(normal, k=size, which="LA", v0=start)
    order = np.argsort(-values, kind="stable")[:size]
    return Spectrum(values[order], vectors[:, order])


def eigengap(found: Spectrum, fewest: int = 2) -> int:
    """Return the number k ≥ `fewest` of clusters with the largest eigengap in the spectrum.

    Von Luxburg, "A tutorial on spectral clustering" (2007), section 8.3. The gap λ_k − λ_{k+1} is
    taken relative to √(1 − λ_{k+1}). The gap itself grows towards the end of the spectrum, and the
    gap relative to 1 − λ_{k+1} prefers two loosely joined halves to their parts.
    """
    steps = np.maximum(1.0 - found.values, 1e-9)
    gaps = np.diff(steps) / np.sqrt(steps[1:])
    return fewest + int(np.argmax(gaps[fewest - 1 :]))


def cut(found: Spectrum, clusters: int, seed: int) -> Int64[np.ndarray, "n"]:
    """Return each vertex's cluster: k-means on the unit rows of the `clusters` first eigenvectors.

    Raises:
        DataError: If there are fewer eigenvectors or vertices than clusters.
    """
    if found.vectors.shape[1] < clusters:
        raise DataError(
            f"clusters={clusters}: a graph over {len(found.vectors)} prototypes has "
            f"{found.vectors.shape[1]} eigenvectors; ask for fewer clusters or more prototypes."
        )
    from sklearn.cluster import KMeans

    rows = found.vectors[:, :clusters]
    rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    with threadpool_limits(1):
        model = KMeans(clusters, n_init=_RESTARTS, random_state=seed % 2**32).fit(rows)
    labels: Int64[np.ndarray, "n"] = model.labels_.astype(np.int64)
    return labels
