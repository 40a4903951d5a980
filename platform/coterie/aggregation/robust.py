"""Robust aggregation by coordinate, which needs every client's update instead of their sum.

Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates" (ICML 2018):
the coordinate-wise median (definition 1) and the coordinate-wise trimmed mean (definition 2). Each
client counts once, whatever its weight, because a faulty client may report any weight.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from coterie.aggregation.exact import Layout, narrowed
from coterie.config.aggregation import AggregationConfig
from coterie.contract.phase import Tensors


def coordinate_median(stacked: Tensor) -> Tensor:
    """Return each coordinate's median over clients; for an even number, the mean of the middle two.

    Args:
        stacked: Floating (clients, …).

    Returns:
        float64 (…).
    """
    middle = (len(stacked) - 1) // 2
    return stacked.sort(dim=0).values[middle : len(stacked) - middle].double().mean(dim=0)


def trimmed(clients: int, trim: float) -> int:
    """Return how many clients a trimmed mean drops at each end; it always keeps one or more.

    Args:
        clients: Number of clients.
        trim: Their share in [0, 0.5), rounded down to whole clients. It counts as a decimal: 0.29
            of 100 is 29, although 0.29 * 100 < 29 in binary.
    """
    return min(math.floor(round(trim * clients, 9)), (clients - 1) // 2)


def trimmed_mean(stacked: Tensor, trim: float) -> Tensor:
    """Return the mean of each coordinate without its smallest and largest values.

    Args:
        stacked: Floating (clients, …).
        trim: Share of the clients cut at each end; see `trimmed`.

    Returns:
        float64 (…).
    """
    cut = trimmed(len(stacked), trim)
    return stacked.sort(dim=0).values[cut : len(stacked) - cut].double().mean(dim=0)


def joined(
    given: Sequence[Tensors], layout: Layout, config: AggregationConfig
) -> dict[str, Tensor]:
    """Return the median or trimmed mean of each tensor over clients.

    Computed tensor by tensor, so that only one tensor of all clients is copied at a time.
    """
    found = {}
    for name, dtype in zip(layout.names, layout.dtypes, strict=True):
        stacked = torch.stack([tensors[name] for tensors in given])
        median = config.rule == "median"
        value = coordinate_median(stacked) if median else trimmed_mean(stacked, config.trim)
        found[name] = narrowed(value, dtype)
    return found
