"""Clustering into parts of equal mass by optimal transport, on a client and on the server.

Orchestra (Lubana et al., 2022), section 4 and algorithms 1 and 2; after Genevay et al.,
"Differentiable Deep Clustering with Cluster Size Constraints" (2019). Rows are unit vectors, so
similarities are cosines.
"""

import torch
from jaxtyping import Float, Int64
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn.functional import normalize

from coterie.errors import DataError
from coterie.precision import unit_rows, widened

EPSILON = 0.04
"""Entropic regularisation ε of the transport."""
ITERATIONS = 10
"""Sinkhorn iterations."""
_LOCAL_ITERATIONS = 5
_FILL = 2.0
"""Bonus for a place that must be filled, above any entry of the plan (at most 1)."""
_CANCELLED = 1e-6
"""A mean of unit rows that is shorter is rounding error and has no direction."""


def sinkhorn(
    logits: Float[Tensor, "n k"], epsilon: float = EPSILON, iterations: int = ITERATIONS
) -> Float[Tensor, "n k"]:
    """Transport samples to clusters of equal mass, by the Sinkhorn-Knopp iteration.

    Starting at softmax(s/ε), each iteration normalises the clusters, then the samples: rows sum to
    1 after any iteration, columns to n / k at convergence. A constant added to a row changes
    nothing.

    Args:
        logits: Similarities of samples and clusters.
        epsilon: ε > 0; the smaller, the harder the plan.
        iterations: Number of iterations, at least 1.

    Returns:
        The plan, non-negative.

    Raises:
        DataError: If there is no sample or no cluster, or a number is out of range.
    """
    _check_matrix(logits, "logits")
    if not epsilon > 0.0 or iterations < 1:
        raise DataError(
            f"epsilon={epsilon}, iterations={iterations}: give a positive ε and 1 or more "
            "iterations."
        )
    # In logarithms, since exp(s/ε) overflows float32. Starting at softmax, as in Orchestra's code:
    # otherwise a constant in a row would weight that sample in the first column sums.
    plan = (logits / epsilon).log_softmax(dim=1)
    for _ in range(iterations):
        plan = plan - plan.logsumexp(dim=0, keepdim=True)
        plan = plan - plan.logsumexp(dim=1, keepdim=True)
    return plan.exp()


def balanced_assignment(plan: Float[Tensor, "n k"]) -> Int64[Tensor, "n"]:
    """Assign samples to clusters of equal size ±1 that hold the most mass of a plan.

    Each cluster gets ⌊n/k⌋ or ⌈n/k⌉ samples. This is the exact optimum, by the Hungarian method on
    a table with a column for each place in a cluster.

    Args:
        plan: Values in [0, 1].

    Returns:
        Each sample's cluster.
    """
    samples, clusters = plan.shape
    places = torch.arange(clusters, device=plan.device)
    surely = places.repeat(samples // clusters)
    # Each cluster has one more place, of which some stay empty; the bonus fills the others first.
    table = torch.cat([plan[:, surely] + _FILL, plan], dim=1)
    _, columns = linear_sum_assignment(table.cpu().double().numpy(), maximize=True)
    return torch.cat([surely, places])[torch.from_numpy(columns).to(plan.device)]


def local_centroids(
    z: Float[Tensor, "n d"], clusters: int, *, seed: int, balanced: bool
) -> tuple[Float[Tensor, "{clusters} d"], Int64[Tensor, "n"]]:
    """Return a client's centroids after five rounds of Sinkhorn, assignment and normalised means.

    An empty cluster gets a random row. Where the rows of a cluster cancel, as z and −z do, no
    direction is nearer to them than another: the centroid is a random direction, not a row, which
    would disclose a sample.

    Args:
        z: Unit rows, n ≥ `clusters`.
        clusters: L.
        seed: Seed of the start, which is L of the rows, and of the substitutes for means.
        balanced: Whether clusters have equal sizes ±1; otherwise each row goes to its cluster of
            most mass, as in Orchestra's code, and sizes differ.

    Returns:
        Unit centroids, and the assignment of rows that they are the means of.

    Raises:
        DataError: If there are fewer rows than clusters.
    """
    _check_matrix(z, "z")
    if not 1 <= clusters <= len(z):
        raise DataError(f"{clusters} clusters for {len(z)} rows: give 1 to {len(z)}.")
    z, draw = widened(z), torch.Generator().manual_seed(seed)
    centroids = z[torch.randperm(len(z), generator=draw)[:clusters].to(z.device)]
    assignment = torch.zeros(len(z), dtype=torch.int64, device=z.device)
    for _ in range(_LOCAL_ITERATIONS):
        plan = sinkhorn(z @ centroids.T)
        assignment = balanced_assignment(plan) if balanced else plan.argmax(dim=1)
        spare = z[torch.randint(len(z), (clusters,), generator=draw).to(z.device)]
        sums = torch.zeros_like(centroids).index_add_(0, assignment, z)
        sizes = assignment.bincount(minlength=clusters)
        sums = torch.where(sizes[:, None] > 0, sums, spare)
        lost = sums.norm(dim=1) <= _CANCELLED * sizes
        if bool(lost.any()):
            sums[lost] = torch.randn(int(lost.sum()), z.shape[1], generator=draw).to(sums)
        centroids = normalize(sums, dim=1)
    return centroids, assignment


def global_centroids(
    points: Float[Tensor, "n d"],
    start: Float[Tensor, "k d"],
    *,
    steps: int = 500,
    learning_rate: float = 0.01,
    momentum: float = 0.9,
    temperature: float = 0.1,
) -> Float[Tensor, "k d"]:
    """Return the server's centroids: gradient steps that fit a softmax to the Sinkhorn plan.

        L(C) = −(1/n) Σ_i ⟨Sinkhorn(C z_i), log softmax(C z_i / τ)⟩, the plan held constant,

    with the gradient (softmax − plan)ᵀ z / (n τ), since the plan's rows sum to 1. Rows of C are
    normalised after each step. There may be more centroids than points.

    Args:
        points: Unit rows z.
        start: Initial centroids C.
        steps: SGD steps.
        learning_rate: SGD's learning rate.
        momentum: SGD's momentum.
        temperature: τ > 0.

    Returns:
        Unit centroids.

    Raises:
        DataError: If there is no point or no centroid, or widths differ.
    """
    _check_matrix(points, "points")
    _check_matrix(start, "start")
    if points.shape[1] != start.shape[1]:
        widths = f"{points.shape[1]} and {start.shape[1]}"
        raise DataError(f"points and centroids of widths {widths}: give them the same width.")
    z, centroids = widened(points), unit_rows(start)
    velocity = torch.zeros_like(centroids)
    for _ in range(steps):
        logits = z @ centroids.T
        error = (logits / temperature).softmax(dim=1) - sinkhorn(logits)
        velocity = momentum * velocity + error.T @ z / (len(z) * temperature)
        centroids = normalize(centroids - learning_rate * velocity, dim=1)
    return centroids


def _check_matrix(x: Tensor, name: str) -> None:
    if x.ndim != 2 or 0 in x.shape:
        raise DataError(f"{name} of shape {tuple(x.shape)}: give a matrix with rows and columns.")
    if not bool(torch.isfinite(x).all()):
        raise DataError(f"{name}: a value is not finite; check how they were computed.")
