"""Metrics without labels: alignment, uniformity and inter-cluster mixing of representations.

Orchestra (Lubana et al., 2022): eq. (5) and appendix C.4 for alignment and uniformity, whose sum
selects hyperparameters; definition 3.1 for the mixing. Representations are L2-normalised here; s is
the cosine similarity.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from coterie.contract.data import Indices
from coterie.errors import DataError

_BLOCK = 2**24
"""Similarities held at once: 64 MiB of float32."""
_WEIGHT = 0.2
"""Weight of uniformity in the selection score."""


def alignment(clients: Sequence[tuple[Tensor, Tensor]]) -> float:
    """Return the mean over clients of E_x s(x, T(x)), in −1..1; 1 if a view equals its sample.

    Args:
        clients: Each client's representations (n_k, d) of its samples and of one view of each.

    Raises:
        DataError: If there is no client, one has no sample, or shapes do not fit.
    """
    _check([x for x, _ in clients])
    for x, view in clients:
        if x.shape != view.shape:
            raise DataError(
                f"representations {tuple(x.shape)} and of views {tuple(view.shape)}: give one view "
                "of each sample."
            )
    cosines = [(_unit(x) * _unit(view)).sum(dim=1) for x, view in clients]
    return _mean([float(cosine.double().mean()) for cosine in cosines])


def uniformity(
    clients: Sequence[Tensor],
    temperature: float = 0.2,
    *,
    anchors: Sequence[Indices] | None = None,
) -> float:
    """Return −1 times the mean over clients of E_x log E_y exp(s(x, y)/τ); higher is better.

    y runs over the client's own samples, including x. It is −1/τ if all representations are equal.
    It is computed in blocks, so memory does not grow with the square of the samples.

    Args:
        clients: Each client's representations (n_k, d).
        temperature: τ, positive.
        anchors: Each client's rows for x, one or more; None for all.

    Raises:
        DataError: If there is no client, one has no sample, or τ is not positive.
    """
    _check(clients)
    if temperature <= 0:
        raise DataError(f"temperature={temperature}: it must be positive.")
    every = [np.arange(len(y)) for y in clients] if anchors is None else anchors
    return -_mean(
        [_log_mean_exp(_unit(y), x, temperature) for y, x in zip(clients, every, strict=True)]
    )


def selection_score(alignment_: float, uniformity_: float) -> float:
    """Return Align + 0.2 · Unif, by which Orchestra selects hyperparameters without labels."""
    return alignment_ + _WEIGHT * uniformity_


def mixing(x: Tensor, assignments: NDArray[np.int64]) -> float:
    """Return inter-cluster mixing δ = max_g max_{b not in g} μ_g · b; lower is better.

    μ_g is the normalised mean of the normalised representations of cluster g.

    Args:
        x: Representations (n, d).
        assignments: Their clusters (n,).

    Returns:
        float: In −1..1; NaN with a single cluster.

    Raises:
        DataError: If there is no sample, or not one assignment per sample.
    """
    _check([x])
    if len(assignments) != len(x):
        raise DataError(f"{len(assignments)} assignments for {len(x)} samples: give one for each.")
    unit, groups = _unit(x), torch.from_numpy(np.unique(assignments, return_inverse=True)[1])
    count = int(groups.max()) + 1
    if count < 2:
        return math.nan
    sums = torch.zeros(count, unit.shape[1]).index_add_(0, groups, unit)
    similarity = unit @ normalize(sums, dim=1).T
    similarity[torch.arange(len(unit)), groups] = -math.inf
    return float(similarity.max())


def _log_mean_exp(unit: Tensor, anchors: Indices, temperature: float) -> float:
    """Return E_x log E_y exp(s(x, y)/τ) over unit rows y, with x at the rows in `anchors`."""
    rows, x = max(1, _BLOCK // len(unit)), unit[torch.from_numpy(anchors)]
    blocks = (x[first : first + rows] @ unit.T for first in range(0, len(x), rows))
    logs = torch.cat([(block / temperature).double().logsumexp(dim=1) for block in blocks])
    return float(logs.mean()) - math.log(len(unit))


def _unit(x: Tensor) -> Tensor:
    return normalize(x.detach().float().cpu(), dim=1)


def _check(clients: Sequence[Tensor]) -> None:
    shapes = [tuple(x.shape) for x in clients]
    if not shapes or any(len(shape) != 2 or shape[0] == 0 for shape in shapes):
        raise DataError(f"representations of shapes {shapes}: give (n, d) with n ≥ 1 per client.")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
