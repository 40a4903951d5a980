"""Clustering into parts of equal mass by optimal transport: on a client, and on the server.

Orchestra (Lubana et al., 2022), section 4 and algorithms 1 and 2; after Genevay et al.,
"Differentiable Deep Clustering with Cluster Size Constraints" (2019). Rows are vectors of unit
length throughout, so similarities are cosines.
"""

import torch
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
"""More than any gain from an entry of the plan, which is at most 1."""
_CANCELLED = 1e-6
"""Length of a mean of unit rows below which it is rounding, and has no direction."""


def sinkhorn(logits: Tensor, epsilon: float = EPSILON, iterations: int = ITERATIONS) -> Tensor:
    """The transport of samples to clusters of equal mass, by Sinkhorn and Knopp's iteration.

    From softmax(s/ε) on, each iteration normalises the clusters, then the samples: every row sums
    to 1 after any number of them, every column to n / k once they converge. A constant added to a
    row changes nothing.

    Args:
        logits: Similarities (n, k) of n samples and k clusters.
        epsilon: ε > 0; the smaller, the harder the plan.
        iterations: How many, at least one.

    Returns:
        The plan (n, k), non-negative.

    Raises:
        DataError: If there is no sample or no cluster, or a number is out of range.
    """
    _check_matrix(logits, "logits")
    if not epsilon > 0.0 or iterations < 1:
        raise DataError(
            f"epsilon={epsilon}, iterations={iterations}: give a positive ε and 1 or more of them."
        )
    # In logarithms, for exp(s/ε) leaves the range of float32. From softmax on, as in Orchestra's
    # code: without it a sample's constant would weigh it in the clusters' first sums.
    plan = (logits / epsilon).log_softmax(dim=1)
    for _ in range(iterations):
        plan = plan - plan.logsumexp(dim=0, keepdim=True)
        plan = plan - plan.logsumexp(dim=1, keepdim=True)
    return plan.exp()


def balanced_assignment(plan: Tensor) -> Tensor:
    """Clusters of equal size ±1 that hold as much of a plan's mass as such clusters can.

    Each cluster has ⌊n/k⌋ or ⌈n/k⌉ samples: the exact optimum, by the Hungarian method on a table
    with a column for each place in a cluster.

    Args:
        plan: (n, k) with values in [0, 1].

    Returns:
        Tensor: int64 (n,), each sample's cluster.
    """
    samples, clusters = plan.shape
    places = torch.arange(clusters, device=plan.device)
    surely = places.repeat(samples // clusters)
    # One further place in every cluster, of which some stay empty; the others are filled first.
    table = torch.cat([plan[:, surely] + _FILL, plan], dim=1)
    _, columns = linear_sum_assignment(table.cpu().double().numpy(), maximize=True)
    return torch.cat([surely, places])[torch.from_numpy(columns).to(plan.device)]


def local_centroids(
    z: Tensor, clusters: int, *, seed: int, balanced: bool
) -> tuple[Tensor, Tensor]:
    """A client's centroids: five times Sinkhorn, assignment and the clusters' normalised means.

    That of an empty cluster is a row, drawn at random. Where rows cancel, as z and −z do, every
    direction is as near to them as any other: it is a random one, not a row, which tells a sample.

    Args:
        z: Unit rows (n, d), n ≥ `clusters`.
        clusters: L.
        seed: Of the start, which is L of the rows, and of what takes the place of a mean.
        balanced: Clusters of equal size ±1; otherwise each row goes where most of its mass does,
            as in Orchestra's code, and sizes differ.

    Returns:
        Unit centroids (L, d), and each row's cluster (n,) that they are the means of.

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
    points: Tensor,
    start: Tensor,
    *,
    steps: int = 500,
    learning_rate: float = 0.01,
    momentum: float = 0.9,
    temperature: float = 0.1,
) -> Tensor:
    """The server's centroids: gradient steps that make a softmax agree with the Sinkhorn plan.

        L(C) = −(1/n) Σ_i ⟨Sinkhorn(C z_i), log softmax(C z_i / τ)⟩, the plan held constant,

    whose gradient is (softmax − plan)ᵀ z / (n τ), for the plan's rows sum to 1. Rows of C are
    normalised after each step. There may be more centroids than points.

    Args:
        points: Unit rows z (n, d).
        start: Centroids C to start from (k, d).
        steps: SGD steps.
        learning_rate: SGD's learning rate.
        momentum: SGD's momentum.
        temperature: τ > 0.

    Returns:
        Unit centroids (k, d).

    Raises:
        DataError: If there is no point or no centroid, or widths differ.
    """
    _check_matrix(points, "points")
    _check_matrix(start, "start")
    if points.shape[1] != start.shape[1]:
        widths = f"{points.shape[1]} and {start.shape[1]}"
        raise DataError(f"points and centroids of widths {widths}: give them the same.")
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
        raise DataError(f"{name}: a value is not finite; check what computed them.")
