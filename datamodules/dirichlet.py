"""Dirichlet partitions: label skew from IID (large α) to one class per client (small α).

Each class has Dirichlet proportions over the clients. Clients then have different sizes, or the
proportions are balanced until they have the same.
"""

import numpy as np
from numpy.typing import NDArray

from coterie.contract.data import Indices
from coterie.datamodules.partitions import Labels
from coterie.errors import DataError

_MAX_DRAWS = 100
_MOST_BALANCING = 1000
"""The most times that clients and classes are scaled in turn. Orchestra's code does it 100 times,
after which clients of α = 1e-3 still have unequal sizes."""


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
        equal_sizes: Whether to scale classes and clients in turn, as Orchestra's code does, until
            clients have equal sizes (±1).
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
    """Draw each client's number of samples of each class, (clients, classes).

    Each class is split at its cumulated Dirichlet proportions.
    """
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
    """Draw each client's number of samples of each class, as many in all for each client (±1).

    Each class's Dirichlet shares of the clients are scaled to equal clients and whole classes in
    turn, as in Orchestra's code. What rounding leaves goes to the largest counts, so that few
    clients get a class by it.
    """
    total = int(sizes.sum())
    base, extra = divmod(total, clients)
    room = np.full(clients, base)
    room[rng.permutation(clients)[:extra]] += 1
    log = _log_gamma_draws((clients, len(sizes)), alpha, rng)
    for _ in range(_MOST_BALANCING):
        log += np.log(sizes) - _log_sum(log, axis=0)
        log += np.log(np.maximum(room, 1))[:, None] - _log_sum(log, axis=1)
        wanted = np.exp(log)
        if np.abs(wanted.sum(axis=0) - sizes).max() < 0.5:
            break
    fits = np.floor(wanted * np.minimum(1.0, sizes / wanted.sum(axis=0)))
    counts: NDArray[np.int64] = fits.astype(np.int64)
    room, left = room - counts.sum(axis=1), sizes - counts.sum(axis=0)
    for place in np.argsort(-wanted, axis=None, kind="stable"):
        client, number = divmod(int(place), len(sizes))
        more = min(room[client], left[number])
        counts[client, number] += more
        room[client] -= more
        left[number] -= more
    return counts


def _log_gamma_draws(
    shape: tuple[int, int], alpha: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Draw logarithms of Gamma(α) variables, whose normalised columns are Dirichlet(α).

    For small α the draws themselves would be 0: Gamma(α) is Gamma(α + 1) · U^(1/α).
    """
    drawn = np.log(rng.gamma(alpha + 1.0, size=shape))
    return np.asarray(drawn + np.log1p(-rng.random(shape)) / alpha)


def _log_sum(log: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    """Return the log of Σ exp along an axis, which is kept."""
    most = log.max(axis=axis, keepdims=True)
    return np.asarray(most + np.log(np.exp(log - most).sum(axis=axis, keepdims=True)))
