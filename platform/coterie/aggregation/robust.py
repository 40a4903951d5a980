"""Coordinate-wise robust aggregation, which needs every client's update instead of their sum.

Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates" (ICML 2018):
the coordinate-wise median (definition 1) and the coordinate-wise trimmed mean (definition 2). Each
client counts once, whatever its weight, because a faulty client may report any weight.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from coterie.config.aggregation import AggregationConfig, AggregationRule
from coterie.contract.phase import Mean, Tensors
from coterie.execution.events import Handle, TurnDone
from coterie.execution.exact import Layout, narrowed
from coterie.execution.packing import Packed, pack, unpack


def summed(rule: AggregationRule, up: Mapping[str, Mean]) -> Mapping[str, Mean]:
    """The contributions that go into the exact sums under this rule, with their weights."""
    if rule == "weighted":
        return up
    if rule == "equal":
        return {slot: Mean(weight=1, tensors=mean.tensors) for slot, mean in up.items()}
    return {}


def sent_whole(rule: AggregationRule, up: Mapping[str, Mean]) -> dict[str, Packed]:
    """The contributions that the server must see one by one under this rule, by slot."""
    if rule in ("weighted", "equal"):
        return {}
    return {slot: pack(up[slot].tensors) for slot in sorted(up)}


def robust_means(
    turns: Sequence[TurnDone],
    layouts: Mapping[str, Layout],
    fetch: Callable[[Handle], Packed],
    config: AggregationConfig,
) -> dict[str, Mean]:
    """Each slot's median or trimmed mean over the clients that contributed to it.

    Computed tensor by tensor, so that only one tensor of all clients is copied at a time.

    Args:
        turns: The turns that count, in client order.
        layouts: Slot to its layout.
        fetch: Reads the tensors behind a handle.
        config: The rule, and the share to trim.

    Returns:
        Slot to result; its weight is the number of contributions. Empty if no turn has `updates`.
    """
    slots = sorted({slot for turn in turns for slot in turn.updates})
    means = {}
    for slot in slots:
        given = [unpack(fetch(turn.updates[slot])) for turn in turns if slot in turn.updates]
        means[slot] = Mean(weight=len(given), tensors=_join(given, layouts[slot], config))
    return means


def coordinate_median(stacked: Tensor) -> Tensor:
    """The median of each coordinate over clients; for an even number, the mean of the middle two.

    Args:
        stacked: Floating (clients, …).

    Returns:
        float64 (…).
    """
    middle = (len(stacked) - 1) // 2
    return stacked.sort(dim=0).values[middle : len(stacked) - middle].double().mean(dim=0)


def trimmed(clients: int, trim: float) -> int:
    """How many of so many clients a trimmed mean leaves out at each end; it leaves one at least.

    Args:
        clients: Number of clients.
        trim: Their share in [0, 0.5), rounded down to whole clients. It counts as a decimal: 0.29
            of 100 is 29, although 0.29 * 100 < 29 in binary.
    """
    return min(math.floor(round(trim * clients, 9)), (clients - 1) // 2)


def trimmed_mean(stacked: Tensor, trim: float) -> Tensor:
    """The mean of each coordinate without its smallest and largest values.

    Args:
        stacked: Floating (clients, …).
        trim: Share of the clients cut at each end; see `trimmed`.

    Returns:
        float64 (…).
    """
    cut = trimmed(len(stacked), trim)
    return stacked.sort(dim=0).values[cut : len(stacked) - cut].double().mean(dim=0)


def _join(given: Sequence[Tensors], layout: Layout, config: AggregationConfig) -> dict[str, Tensor]:
    joined = {}
    for name, dtype in zip(layout.names, layout.dtypes, strict=True):
        stacked = torch.stack([tensors[name] for tensors in given])
        median = config.rule == "median"
        found = coordinate_median(stacked) if median else trimmed_mean(stacked, config.trim)
        joined[name] = narrowed(found, dtype)
    return joined
