"""k-means by FAISS: on all points, from k-means++ starts, reproducible from a seed."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, Int64, Shaped
from torch import Tensor
from torch.nn.functional import normalize

from coterie.clustering.blocks import count_not_finite, row_blocks
from coterie.clustering.faiss_library import load_faiss
from coterie.clustering.narrow_search import narrow_nearest
from coterie.errors import DataError

faiss = load_faiss()

Points = Shaped[Tensor, "n d"] | Shaped[np.ndarray, "n d"]
_Weights = Shaped[Tensor, "n"] | Shaped[np.ndarray, "n"]
_Centroids = Shaped[Tensor, "k d"] | Shaped[np.ndarray, "k d"]

Metric = Literal["euclidean", "cosine"]

_SHORTEST = 1e-12
"""Length below which `normalize` does not bring a vector to length 1."""


@dataclass(frozen=True, kw_only=True)
class KMeansResult:
    """Result of k-means.

    Attributes:
        centroids: On the points' device; unit rows if spherical.
        assignments: Each point's nearest centroid.
        inertia: Σ_i w_i ‖x_i − c_{a_i}‖² of exactly these centroids and assignments, w_i = 1
            without weights; if spherical, of the normalised points, so 2 Σ_i w_i (1 − cos).
    """

    centroids: Float32[Tensor, "k d"]
    assignments: Int64[Tensor, "n"]
    inertia: float


def kmeans(
    x: Points,
    k: int,
    *,
    seed: int,
    iterations: int = 100,
    restarts: int = 10,
    weights: _Weights | None = None,
    spherical: bool = False,
    init: _Centroids | None = None,
) -> KMeansResult:
    """Cluster points with Lloyd's algorithm, and return the restart with the least inertia.

    Starts are k-means++ if FAISS has it (1.15 does), else random points. Each runs on one thread,
    so that the bits do not depend on the number of cores, and as many of them side by side as
    PyTorch has threads; on the points' GPU, one after the other, if FAISS was built for GPUs. It
    stops early once its objective no longer falls. An empty cluster takes half of
    another one, drawn with a probability that grows with its size: both get that cluster's
    centroid, moved by ±1/1024 of each coordinate. So with fewer than k distinct points some
    centroids are such near-copies, and may have no points. With n = k the points themselves are
    returned, in order, whatever `init` is.

    Args:
        x: Points, converted to float32.
        k: Number of clusters, at most the number of points of non-zero weight.
        seed: Seed of the starts.
        iterations: Maximum number of Lloyd iterations per restart.
        restarts: Number of independent starts; with `init` there is only one.
        weights: Non-negative weights; they apply to means and inertia, not to the starts.
        spherical: Cluster by cosine: points and centroids are normalised.
        init: Initial centroids.

    Raises:
        DataError: If there are fewer points than clusters, a value is not finite, squared
            distances overflow float32, or shapes and options do not fit.
    """
    points = _tensor(x, "x")
    points = _unit(points) if spherical else _in_range(points, "x")
    masses = None if weights is None else _weights(weights, len(points)).to(points.device)
    used = points if masses is None else points[masses > 0]
    _check(len(used), k, iterations, restarts)
    start = None if init is None else _init(init, k, points.shape[1])
    scaled = None if masses is None else _scaled(masses)
    draws = np.random.SeedSequence(seed).generate_state(1 if start is not None else restarts)
    # Restarts are compared here, because FAISS's own `nredo` ignores the weights when it does.
    runs = [_clustering(used, k, int(draw >> 1), iterations, spherical) for draw in draws]
    lloyd = partial(_lloyd, points=used, weights=scaled, init=start)
    threads = 1 if used.is_cuda else min(len(runs), torch.get_num_threads())
    with ThreadPoolExecutor(threads) as pool:
        found = (result_of(points, centroids, masses) for centroids in pool.map(lloyd, runs))
        return min(found, key=lambda result: result.inertia)  # one is held at a time


def counted_means(
    points: Float[Tensor, "n d"], found: KMeansResult
) -> tuple[Float32[Tensor, "k d"], Int64[Tensor, "k"]]:
    """Return the mean and the number of each cluster's points; an empty one keeps its centroid.

    Lloyd's last centroids are the means of an assignment before the final one, so a centroid may be
    a single point though several are assigned to it.
    """
    counts = found.assignments.bincount(minlength=len(found.centroids))
    sums = torch.zeros(found.centroids.shape, dtype=torch.float64, device=points.device)
    for rows, assigned in row_blocks(points, found.assignments):
        sums.index_add_(0, assigned, rows.double())
    means = (sums / counts.clamp_min(1)[:, None]).float()
    return torch.where((counts > 0)[:, None], means, found.centroids), counts


def nearest_centroids(
    x: Points, centroids: _Centroids, metric: Metric = "euclidean"
) -> Int64[Tensor, "n"]:
    """Assign each point to its nearest centroid, and ties to the lowest index.

    Args:
        x: Points.
        centroids: Centroids.
        metric: "euclidean", or "cosine" (both L2-normalised first).

    Returns:
        Each point's centroid, on the points' device.

    Raises:
        DataError: If a value is not finite, squared distances overflow float32, shapes do not fit,
            or the metric is unknown.
    """
    points, centres = _tensor(x, "x"), _tensor(centroids, "centroids")
    if points.shape[1] != centres.shape[1] or len(centres) == 0:
        raise DataError(
            f"points {tuple(points.shape)} and centroids {tuple(centres.shape)}: "
            "give (n, d) and (k, d) with k ≥ 1."
        )
    if metric not in ("euclidean", "cosine"):
        raise DataError(f"metric={metric}: choose euclidean or cosine.")
    if metric == "cosine":
        points, centres = _unit(points), _unit(centres)
    else:
        points, centres = _in_range(points, "x"), _in_range(centres, "centroids")
    return _nearest(points, centres.to(points.device))


def _nearest(
    points: Float32[Tensor, "n d"], centroids: Float32[Tensor, "k d"]
) -> Int64[Tensor, "n"]:
    """Return the nearest centroids, with any number of threads; ties go to the lowest index.

    By products in float32; where rounding could decide, by products in float64, then by
    differences.
    """
    if len(centroids) == 1:
        return torch.zeros(len(points), dtype=torch.int64, device=points.device)
    half = (centroids.double().square().sum(dim=1) / 2).float()
    blocks = []
    for (block,) in row_blocks(points):
        near, unsure = narrow_nearest(block, centroids, half)
        if bool(unsure.any()):
            near[unsure] = _nearest_in_float64(block[unsure], centroids.double())
        blocks.append(near)
    return torch.cat(blocks)


def _nearest_in_float64(
    points: Float32[Tensor, "n d"], centroids: Float64[Tensor, "k d"]
) -> Int64[Tensor, "n"]:
    rows, squares = points.double(), centroids.square().sum(dim=1)
    away = torch.addmm(squares, rows, centroids.T, alpha=-2)
    least, near = away.min(dim=1)
    rounding = 4 * points.shape[1] * torch.finfo(torch.float64).eps
    slack = rounding * (rows.square().sum(dim=1) + squares.max())
    unsure = (away <= (least + slack)[:, None]).sum(dim=1) > 1
    if bool(unsure.any()):
        exact = "donot_use_mm_for_euclid_dist"
        near[unsure] = torch.cdist(rows[unsure], centroids, compute_mode=exact).argmin(dim=1)
    return near


def _clustering(
    points: Float32[Tensor, "n d"], k: int, seed: int, iterations: int, spherical: bool
) -> Any:
    """Return FAISS's k-means, set to use every point and to search on the points' device."""
    options = {"min_points_per_centroid": 1, "max_points_per_centroid": len(points)}
    if hasattr(faiss, "ClusteringInitMethod_KMEANS_PLUS_PLUS"):
        options["init_method"] = faiss.ClusteringInitMethod_KMEANS_PLUS_PLUS
    features = points.shape[1]
    runner = faiss.Kmeans(features, k, niter=iterations, seed=seed, spherical=spherical, **options)
    runner.index = flat_index(features, spherical, points.device)
    return runner


def _lloyd(
    runner: Any,
    points: Float32[Tensor, "n d"],
    weights: Float32[np.ndarray, "n"] | None,
    init: Float32[np.ndarray, "k d"] | None,
) -> Float32[Tensor, "k d"]:
    """Run Lloyd's algorithm from one start, and return the centroids on the points' device."""
    data = np.ascontiguousarray(points.cpu().numpy())
    with _one_thread():
        runner.train(data, weights=weights, init_centroids=init)
    return torch.from_numpy(np.array(runner.centroids, dtype=np.float32)).to(points.device)


def flat_index(features: int, spherical: bool, device: torch.device) -> Any:
    """Return an exact index of centroids, on the points' GPU if FAISS supports it."""
    index = faiss.IndexFlatIP(features) if spherical else faiss.IndexFlatL2(features)
    if device.type != "cuda" or not hasattr(faiss, "StandardGpuResources"):
        return index
    number = torch.cuda.current_device() if device.index is None else device.index
    return faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), number, index)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run FAISS and its BLAS on one thread; restore the number of threads afterwards."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def result_of(
    points: Float32[Tensor, "n d"],
    centroids: Float32[Tensor, "k d"],
    weights: Float64[Tensor, "n"] | None,
) -> KMeansResult:
    """Assign points to centroids, and sum the inertia block by block."""
    assignments = _nearest(points, centroids)
    pairs = row_blocks(points, assignments)
    sums = [(rows - centroids[near]).double().square_().sum(dim=1) for rows, near in pairs]
    squared = torch.cat(sums)
    inertia = squared if weights is None else squared * weights
    # NumPy's sum: its order does not depend on the number of threads.
    total = float(inertia.cpu().numpy().sum())
    return KMeansResult(centroids=centroids, assignments=assignments, inertia=total)


def _tensor(values: Points, name: str) -> Float32[Tensor, "n d"]:
    """Convert to float32; refuse anything but a matrix of finite values."""
    tensor = torch.as_tensor(values).detach().to(torch.float32)
    if tensor.ndim != 2 or tensor.shape[1] == 0:
        raise DataError(f"{name} of shape {tuple(tensor.shape)}: give vectors of shape (n, d).")
    bad = count_not_finite(tensor)
    if bad:
        raise DataError(
            f"{bad} of {len(tensor)} rows of {name} are not finite: check how they were computed."
        )
    return tensor


def _unit(points: Float32[Tensor, "n d"]) -> Float32[Tensor, "n d"]:
    """Return the points at unit length, also where their squares overflow float32; zeros stay."""
    units, lengths = normalize(points, dim=1), points.norm(dim=1)
    odd = (lengths < _SHORTEST) | torch.isinf(lengths)
    if bool(odd.any()):
        rows = points[odd]
        largest = rows.abs().amax(dim=1, keepdim=True)
        units[odd] = normalize(rows / largest.masked_fill(largest == 0, 1), dim=1)
    return units


def _in_range(points: Float32[Tensor, "n d"], name: str) -> Float32[Tensor, "n d"]:
    """Return the points if their squared distances fit float32; infinity would crash FAISS."""
    bad, longest = 0, 0.0
    for (block,) in row_blocks(points):
        over = block[~torch.isfinite(4 * block.square().sum(dim=1))]
        if len(over):
            bad, longest = bad + len(over), max(longest, float(over.double().norm(dim=1).max()))
    if bad:
        raise DataError(
            f"{bad} of {len(points)} rows of {name} have a length of up to {longest:.2g}, so "
            "their squared distances overflow float32: scale them to at most 9e18."
        )
    return points


def _weights(weights: _Weights, samples: int) -> Float64[Tensor, "n"]:
    tensor = torch.as_tensor(weights).detach().to(torch.float64)
    if tensor.shape != (samples,) or not bool(torch.isfinite(tensor).all() and (tensor >= 0).all()):
        raise DataError(
            f"weights of shape {tuple(tensor.shape)}: give {samples} finite non-negative numbers."
        )
    return tensor


def _scaled(weights: Float64[Tensor, "n"]) -> Float32[np.ndarray, "positive"]:
    """Return the positive weights, scaled to mean 1.

    To refill an empty cluster, some versions of FAISS (not 1.15) look for one of weight above 1,
    and never return if all weights are small.
    """
    positive = weights[weights > 0]
    return (positive / positive.mean()).float().cpu().numpy()


def _init(init: _Centroids, k: int, features: int) -> Float32[np.ndarray, "k d"]:
    tensor = _in_range(_tensor(init, "init"), "init")
    if tensor.shape != (k, features):
        raise DataError(f"init of shape {tuple(tensor.shape)}: give ({k}, {features}).")
    return np.ascontiguousarray(tensor.cpu().numpy())


def _check(samples: int, k: int, iterations: int, restarts: int) -> None:
    for name, value in (("k", k), ("iterations", iterations), ("restarts", restarts)):
        if value < 1:
            raise DataError(f"{name}={value}: give at least 1.")
    if k > samples:
        raise DataError(f"k={k} clusters for {samples} points of non-zero weight: lower k.")
