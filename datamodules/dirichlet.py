"""Dirichlet partitions: label skew of adjustable strength, from IID (large α) to one class (small).

There are two kinds: proportions over clients for each class, with clients of different sizes, and
proportions over classes for each client, with clients of equal size.
"""

import numpy as np
from numpy.typing import NDArray

from coterie.contract.data import Indices
from coterie.datamodules.partitions import Labels
from coterie.errors import DataError

_MAX_DRAWS = 100


def dirichlet(
    labels: Labels,
    clients: int,
    alpha: float,
    seed: int,
    *,
    equal_sizes: bool = False,
    min_samples: int = 2,
) -> list[Indices]:
    """Distribute classes over clients by Dirichlet(α) proportions; every sample is used once.

    Args:
        labels: int64 classes (n,).
        clients: Number of clients.
        alpha: Concentration: 1e5 is close to IID, 1e-3 close to one class per client.
        seed: Seed of the proportions and the samples.
        equal_sizes: Whether to draw each client's class proportions around the data set's and fill
            all clients to equal sizes (±1), instead of drawing each class's shares of the clients.
            An exhausted class is replaced by the client's other classes, in proportion.
        min_samples: Redraw, up to 100 times, until each client has this many samples.

    Returns:
        Each client's rows, sorted.

    Raises:
        DataError: If no draw gives every client `min_samples`.
    """
    if clients * min_samples > len(labels) or clients > len(labels):
        raise DataError(
            f"dirichlet: clients={clients} with min_samples={min_samples} need more than the "
            f"{len(labels)} samples; lower one of them."
        )
    rng = np.random.default_rng(seed)
    _, position, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    if equal_sizes:
        counts = _equal_counts(sizes, clients, alpha, rng)
    else:
        counts = _free_counts(sizes, clients, alpha, min_samples, rng)
    parts: list[list[Indices]] = [[] for _ in range(clients)]
    for number, column in enumerate(counts.T):
        rows = rng.permutation(np.flatnonzero(position == number))
        for part, share in zip(parts, np.split(rows, np.cumsum(column)[:-1]), strict=True):
            part.append(share)
    return [np.sort(np.concatenate(part)).astype(np.int64) for part in parts]


def _free_counts(
    sizes: NDArray[np.int64], clients: int, alpha: float, least: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Counts (clients, classes): each class is split at its cumulated Dirichlet proportions."""
    for _ in range(_MAX_DRAWS):
        shares = rng.dirichlet(np.full(clients, alpha), size=len(sizes))
        cuts = np.rint(np.cumsum(shares, axis=1) * sizes[:, None]).astype(np.int64)
        cuts[:, -1] = sizes
        counts = np.diff(cuts, axis=1, prepend=0).T
        if counts.sum(axis=1).min() >= least:
            return counts
    raise DataError(
        f"dirichlet: none of {_MAX_DRAWS} draws gave each of clients={clients} "
        f"min_samples={least} samples at alpha={alpha:g}; raise alpha, lower clients or "
        "min_samples, or set equal_sizes=true."
    )


def _equal_counts(
    sizes: NDArray[np.int64], clients: int, alpha: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Counts (clients, classes) with equal sums over classes, filled client by client.

    The concentration is proportional to class size (α·C·n_c/n, which is α for balanced classes):
    with equal concentrations, large α would leave the frequent classes to the last clients.
    """
    concentration = alpha * len(sizes) * sizes / sizes.sum()
    counts = np.zeros((clients, len(sizes)), dtype=np.int64)
    left = sizes.copy()
    base, extra = divmod(int(sizes.sum()), clients)
    # The last clients get the remaining classes, so the order is random.
    for turn, client in enumerate(rng.permutation(clients)):
        mix = rng.dirichlet(concentration)
        need = base + (turn < extra)
        while need:
            mix = np.where(left > 0, mix, 0.0)
            if mix.sum() == 0:
                mix = np.zeros(len(sizes))
                mix[left > 0] = rng.dirichlet(concentration[left > 0])
            drawn = np.minimum(rng.multinomial(need, mix / mix.sum()), left)
            counts[client] += drawn
            left -= drawn
            need -= int(drawn.sum())
    return counts
