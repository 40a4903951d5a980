"""Density-based clusters of prototypes (HDBSCAN), with outliers in sparse regions."""

import torch
from jaxtyping import Float64, Int32
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.nn.functional import one_hot

from coterie.clustering.lattice import off_lattice
from coterie.clustering.prototypes import temperature
from coterie.errors import RunError

_SHARE, _FEWEST = 50, 5
"""By default a cluster has at least a fiftieth of the prototypes, and at least five."""
_REACH = 3.0
"""Distance to a prototype up to which a sample is of its cluster, as a multiple of the root mean
squared distance of the cluster's samples to their prototypes."""


def dense_clusters(
    points: Int32[Tensor, "m c"],
    counts: Float64[Tensor, "m"],
    scatter: Float64[Tensor, "m"],
    least: int | None = None,
) -> dict[str, Tensor]:
    """Cluster prototypes by density; return arguments of `networks.prototypes.BoundedPrototypes`.

    HDBSCAN (Campello, Moulavi and Sander, "Density-Based Clustering Based on Hierarchical Density
    Estimates", 2013) over the prototypes, each of which counts once. It does not see how many
    samples they stand for, nor how far these lie apart. So prototypes whose own samples lie farther
    apart than `_REACH` allows become outliers too.

    Args:
        points: Prototypes, on the lattice.
        counts: Samples that each stands for.
        scatter: Σ ‖x − p‖² over these samples.
        least: The fewest prototypes of a cluster; by default a fiftieth of all, at least 5.

    Raises:
        RunError: If no cluster is found.
    """
    from sklearn.cluster import HDBSCAN  # a slow import, needed by the server only

    least = least or max(_FEWEST, len(points) // _SHARE)
    number, members = 0, torch.full((len(points),), -1)
    if len(points) >= least:
        with threadpool_limits(1):
            found = HDBSCAN(min_cluster_size=least, copy=True).fit(off_lattice(points).numpy())
        members = torch.from_numpy(found.labels_).long()
        number = int(members.max()) + 1
    if not number:
        raise RunError(
            f"HDBSCAN finds no cluster of {least} or more among {len(points)} prototypes; lower "
            "method.min_cluster_size, or take method.clustering=cut."
        )
    apart = scatter / counts
    reach = torch.full_like(apart, torch.inf)
    for cluster in range(number):
        own = members == cluster
        # The median, because outliers may be among the samples of some.
        reach[own] = _REACH**2 * apart[own].median()
    members = torch.where((members < 0) | (apart > reach), number, members)
    return {
        "points": points,
        "counts": counts,
        "members": one_hot(members, number + 1).double(),
        "temperature": temperature(scatter, counts),
        "reach": reach,
    }
